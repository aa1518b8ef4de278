-- Prolongs many holds, each if its key holds the owner.
--
-- KEYS[i]      a lock
-- ARGV[1]      not after, by the server's clock, in ms
-- ARGV[2 * i]      the owner that should hold lock i
-- ARGV[2 * i + 1]  its lease, in ms
--
-- Answers as renew.lua does: {now, ..} with 1 prolonged, 0 the key is gone, -1 it is another
-- owner's, or not a lock. Or {'LATE', now}: arrived too late, did nothing.
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
  local found = redis.pcall('getrange', key, 0, 128)
  if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then
    redis.call('getrange', key, 0, 128)
  end
  if found == ARGV[2 * i] then
    redis.call('pexpire', key, math.max(redis.call('pttl', key), tonumber(ARGV[2 * i + 1])))
    answers[i + 1] = 1
  elseif redis.call('exists', key) == 0 then
    answers[i + 1] = 0
  else
    answers[i + 1] = -1
  end
end
return answers
