-- Takes a free lock for an owner, or takes it again for the same owner, as a request sent twice
-- does.
--
-- KEYS[1]  the lock
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  owner
-- ARGV[3]  lease, in ms
--
-- Answers nil: taken. A number: busy, time to live in ms, -1 for none. {'LATE', now}: arrived too
-- late, did nothing.
--
-- Atomic: Redis runs one script at a time. The count is written, never incremented. The time to
-- live never shrinks.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
if redis.call('exists', KEYS[1]) == 1 and redis.call('hexists', KEYS[1], ARGV[2]) == 0 then
  return redis.call('pttl', KEYS[1])
end
redis.call('hset', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), tonumber(ARGV[3])))
return nil
