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
-- Atomic: Redis runs one script at a time. A key of another type is an error: GET says so.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
-- A long text is no owner, and is not read.
local is_long = redis.call('strlen', KEYS[1]) > 128
local found = is_long and 'long' or redis.call('get', KEYS[1])
if found and found ~= ARGV[2] then
  return redis.call('pttl', KEYS[1])
end
redis.call('set', KEYS[1], ARGV[2], 'px', math.max(redis.call('pttl', KEYS[1]), tonumber(ARGV[3])))
return nil
