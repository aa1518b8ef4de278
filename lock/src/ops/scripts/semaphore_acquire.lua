-- Takes permits, if there are enough.
--
-- KEYS[1]  the semaphore: a number of permits
-- KEYS[2]  the request: how many it took, 0 undone
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  permits
-- ARGV[3]  how long to remember the request, in ms
--
-- Answers {1, left}: taken. {0, left}: refused, as fewer are left or the request was undone. {'LATE', now}: arrived too
-- late, did nothing. A key that is no number is an error, and it stays.
--
-- Atomic: Redis runs one script at a time. What was taken is remembered under the request, so a copy takes nothing. It
-- only remembers it anew: replicas are asked for what was written, and what the first copy wrote may not have reached
-- them. A refusal is not remembered: the same request asks again when there may be more.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local value = redis.call('get', KEYS[1]) or '0'
if not string.match(value, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
local left = tonumber(value)
local known = redis.call('get', KEYS[2])
if known == '0' then
  return {0, left}
elseif known then
  redis.call('pexpire', KEYS[2], ARGV[3])
  return {1, left}
end
if left < tonumber(ARGV[2]) then
  return {0, left}
end
redis.call('decrby', KEYS[1], ARGV[2])
redis.call('set', KEYS[2], ARGV[2], 'px', ARGV[3])
return {1, left - tonumber(ARGV[2])}
