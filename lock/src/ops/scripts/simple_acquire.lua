-- Takes a free lock for an owner, or takes it again for the same owner, as a request sent twice
-- does.
--
-- KEYS[1]  the lock
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  owner
-- ARGV[3]  lease, in ms
--
-- Answers nil: taken. A number: busy, time to live in ms, -1 for none. {'LATE', now}: arrived too
-- late, did nothing. A key that is no lock is an error, and it stays.
--
-- Atomic: Redis runs one script at a time. A key of another type is no lock: GETRANGE says so. Nor is a
-- text without an end that is no owner, a UUID and a number.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
-- A long text is no owner, and is not read.
local found = redis.call('getrange', KEYS[1], 0, 128)
local lasts = redis.call('pttl', KEYS[1])
if lasts ~= -2 and found ~= ARGV[2] then
  if lasts == -1 and not (string.sub(found, 9, 9) == '-' and string.sub(found, 37, 37) == ':'
    and string.match(found, '^%x+%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x+:%d+'))
  then
    return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
  end
  return lasts
end
redis.call('set', KEYS[1], ARGV[2], 'px', math.max(lasts, tonumber(ARGV[3])))
return nil
