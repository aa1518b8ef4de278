-- Takes a free lock for an owner, with a fencing token that is larger than every one before. For an
-- owner that has it already, as when a request is sent twice, it answers the same token again.
--
-- KEYS[1]  the lock
-- KEYS[2]  the counter of tokens
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  owner
-- ARGV[3]  lease, in ms
--
-- Answers {token}: taken. A number: busy, time to live in ms, -1 for none. {'LATE', now}: arrived
-- too late, did nothing. The token is a text: it may have more digits than a number of Lua's keeps.
--
-- Atomic: Redis runs one script at a time. A token is at least the server's clock in microseconds,
-- so that tokens grow also when a server has lost its counter. The counter outlives every lock.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local mine = redis.call('hexists', KEYS[1], ARGV[2]) == 1
if not mine and redis.call('exists', KEYS[1]) == 1 then
  return redis.call('pttl', KEYS[1])
end
if not mine or redis.call('exists', KEYS[2]) == 0 then
  local clock = time[1] * 1000000 + time[2]
  if redis.call('incr', KEYS[2]) < clock then
    redis.call('set', KEYS[2], string.format('%.0f', clock))
  end
end
redis.call('persist', KEYS[2])
redis.call('hset', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), tonumber(ARGV[3])))
return {redis.call('get', KEYS[2])}
