-- Prolongs many holds, each if it is still its owner's.
--
-- KEYS[i]      a lock
-- ARGV[1]      not after, by the server's clock, in ms
-- ARGV[2 * i]      the owner that should hold lock i
-- ARGV[2 * i + 1]  its lease, in ms
--
-- Answers {now, ..}: the server's clock in ms, then a number for each key: 1 prolonged, 0 the key
-- is gone, -1 it is another owner's, or not a lock. Or {'LATE', now}: arrived too late, did
-- nothing.
--
-- Atomic: Redis runs one script at a time. A key of the wrong type is caught and harms no other. A
-- time to live never shrinks. PEXPIRE is allowed on a server that is out of memory.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local answers = {now}
for i, key in ipairs(KEYS) do
  -- A key of another type is no lock. What the server refuses this user is an error.
  local has = redis.pcall('hexists', key, ARGV[2 * i])
  if type(has) == 'table' and not string.find(has.err, 'WRONGTYPE', 1, true) then
    redis.call('hexists', key, ARGV[2 * i])
  end
  if has == 1 then
    local lease = ARGV[2 * i + 1]
    -- One call less where the server itself keeps the longer of two, which is since Redis 7. An
    -- older one refuses it.
    if redis.pcall('pexpire', key, lease, 'GT') ~= 1 then
      redis.call('pexpire', key, math.max(redis.call('pttl', key), tonumber(lease)))
    end
    answers[i + 1] = 1
  elseif redis.call('exists', key) == 0 then
    answers[i + 1] = 0
  else
    answers[i + 1] = -1
  end
end
return answers
