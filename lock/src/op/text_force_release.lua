-- Ends whatever holds the lock.
--
-- KEYS[1]  the lock
-- ARGV[1]  not after, by the server's clock, in ms
--
-- Answers 1: there was something. 0: there was nothing. {'LATE', now}: arrived too late, did nothing. A key that is not
-- a text is somebody's data: an error, and it stays.
--
-- Atomic: Redis runs one script at a time. It carries a not-after because a copy that arrives late would end a hold
-- that nobody meant.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
if not redis.call('get', KEYS[1]) then
  return 0
end
redis.call('del', KEYS[1])
return 1
