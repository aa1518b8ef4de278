-- Counts the permits that are free and those that are taken.
--
-- KEYS[1]  the semaphore: a number of permits that are free
-- KEYS[2]  the leases: ids and when they end
-- KEYS[3]  the channel
-- ARGV[1]  the command that publishes
--
-- Answers {free, taken}; {0, 0} if there is no semaphore. A key of another type is an error, and it
-- stays.
--
-- Atomic: Redis runs one script at a time. Permits whose leases have ended are free again first,
-- which is right at any time, so it needs no not-after.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- A long text is no number, and is not read.
local is_long = redis.call('strlen', KEYS[1]) > 20
local value = is_long and 'long' or redis.call('get', KEYS[1])
if value and not string.match(value, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
local left = tonumber(value or '0')
local freed, told = redis.call('zcount', KEYS[2], 0, now), nil
local taken = redis.call('zcard', KEYS[2]) - freed
if freed > 0 then
  -- Nothing is in this range. A server that refuses to remove does so before permits are added.
  redis.call('zremrangebyscore', KEYS[2], 1, 0)
  if value then
    left = redis.call('incrby', KEYS[1], freed)
  end
  redis.call('zremrangebyscore', KEYS[2], 0, now)
  told = left > 0 and redis.pcall(ARGV[1], KEYS[3], left)
end
local answers = value and {left, taken} or {0, 0}
return type(told) == 'table' and {'UNTOLD', told.err, answers} or answers
