-- Writes the count of an existing hold: one level of nesting more or less. Never creates.
--
-- KEYS[1]  the lock
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  owner
-- ARGV[3]  count
-- ARGV[4]  lease in ms, 0 to leave the time to live as it is
--
-- Answers 1: written. 0: the owner holds nothing here. {'LATE', now}: arrived too late, did
-- nothing.
--
-- Atomic: Redis runs one script at a time. The time to live never shrinks. PEXPIRE comes first
-- because it is allowed on a server that is out of memory, and after a script's first write the
-- others are too.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
  return 0
end
local keep = math.max(redis.call('pttl', KEYS[1]), tonumber(ARGV[4]))
if keep > 0 then
  redis.call('pexpire', KEYS[1], keep)
end
redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
return 1
