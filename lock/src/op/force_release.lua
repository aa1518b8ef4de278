-- Ends whatever holds the lock, and tells the waiters.
--
-- KEYS[1]  the lock
-- KEYS[2]  its channel
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  message
-- ARGV[3]  the command that publishes
--
-- Answers 1: there was something. 0: there was nothing. {'LATE', now}: arrived too late, did nothing. A key that is not
-- a hash is somebody's data: an error, and it stays.
--
-- Atomic: Redis runs one script at a time. It carries a not-after because a copy that arrives late would end a hold
-- that nobody meant.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local kind = redis.call('type', KEYS[1]).ok
if kind == 'none' then
  return 0
end
if kind ~= 'hash' then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
redis.call('del', KEYS[1])
redis.call(ARGV[3], KEYS[2], ARGV[2])
return 1
