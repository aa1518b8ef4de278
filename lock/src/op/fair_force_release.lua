-- Ends whatever holds a fair lock, and tells whose turn it is, also if nothing held it.
--
-- KEYS[1]  the lock
-- KEYS[2]  the line: a list of owners, the next one first
-- KEYS[3]  until when each of them is believed to live: a sorted set of moments in ms
-- KEYS[4]  the lock's channel; each in line listens to one of his own, which has his name behind it
-- KEYS[5]  the request: what was answered
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  message
-- ARGV[3]  the command that publishes
-- ARGV[4]  how long to remember the request, in ms
--
-- Answers 1: there was something. 0: there was nothing. {'LATE', now}: arrived too late, did nothing. A key that is not
-- a hash is somebody's data: an error, and it stays. Data where list or set should be stays too, and is no error.
--
-- Atomic: Redis runs one script at a time. The answer is remembered under the request, so a copy does not end the hold
-- of whoever came in meanwhile; and a copy that arrives after that was forgotten is refused.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local known = redis.call('get', KEYS[5])
if known then
  return tonumber(known)
end
local kind = redis.call('type', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'hash' then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
local line, moments = redis.call('type', KEYS[2]).ok, redis.call('type', KEYS[3]).ok
local ended = redis.call('del', KEYS[1])
redis.call('set', KEYS[5], ended, 'px', ARGV[4])
if (line ~= 'list' and line ~= 'none') or (moments ~= 'zset' and moments ~= 'none') then
  return ended
end
-- The dead lose their place.
local head = redis.call('lindex', KEYS[2], 0)
while head do
  local until_then = redis.call('zscore', KEYS[3], head)
  if until_then and tonumber(until_then) > now then
    break
  end
  redis.call('zrem', KEYS[3], head)
  redis.call('lrem', KEYS[2], 0, head)
  head = redis.call('lindex', KEYS[2], 0)
end
if head then
  redis.call(ARGV[3], KEYS[4] .. ':' .. head, ARGV[2])
else
  redis.call('del', KEYS[3])
end
return ended
