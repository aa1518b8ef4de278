-- Draws a fencing token for a hold that was taken without one.
--
-- KEYS[1]  the lock, or the leases of a semaphore's permits
-- KEYS[2]  the counter of tokens
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  owner, or the id of a permit
-- ARGV[3]  how the hold is stored: 'hash', 'text' or 'permit'
--
-- Answers {token}, or nil: the owner holds nothing here. {'LATE', now}: arrived too late, did
-- nothing.
--
-- Atomic: Redis runs one script at a time. Sent twice, it draws two, and the larger counts. The
-- token's rule is that of fenced_acquire.lua.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local is_held
if ARGV[3] == 'hash' then
  is_held = redis.call('hexists', KEYS[1], ARGV[2]) == 1
elseif ARGV[3] == 'text' then
  is_held = redis.call('get', KEYS[1]) == ARGV[2]
else
  local ends = redis.call('zscore', KEYS[1], ARGV[2])
  is_held = ends and tonumber(ends) > now
end
if not is_held then
  return nil
end
local clock = time[1] * 1000000 + time[2]
if redis.call('incr', KEYS[2]) < clock then
  redis.call('set', KEYS[2], string.format('%.0f', clock))
end
redis.call('persist', KEYS[2])
return {redis.call('get', KEYS[2])}
