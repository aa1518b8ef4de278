-- Prolongs the leases of many permits, each if it is still taken.
--
-- KEYS[i]      the leases of a semaphore: ids and when they end
-- ARGV[1]      not after, by the server's clock, in ms
-- ARGV[2 * i]      the id of permit i
-- ARGV[2 * i + 1]  its lease, in ms
--
-- Answers {now, ..}: the server's clock in ms, then a number for each key: 1 prolonged, 0 the
-- permit was given back or its lease has ended, -1 the key is of another type. Or {'LATE', now}:
-- arrived too late, did nothing.
--
-- Atomic: Redis runs one script at a time. A key of the wrong type is caught and harms no other. A
-- lease never shrinks, and one that has ended does not come back: the permit may have another
-- owner. The first write is ZREM of what is not there: ZREM is allowed on a server that is out of
-- memory, ZADD is not, and after a script's first write all are.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local answers = {now}
for i, key in ipairs(KEYS) do
  local id = ARGV[2 * i]
  -- A key of another type is no lock. What the server refuses this user is an error.
  local score = redis.pcall('zscore', key, id)
  if type(score) == 'table' and not string.find(score.err, 'WRONGTYPE', 1, true) then
    redis.call('zscore', key, id)
  end
  if type(score) == 'table' then
    answers[i + 1] = -1
  elseif score and tonumber(score) > now then
    local ends = now + tonumber(ARGV[2 * i + 1])
    if tonumber(score) < ends then
      redis.call('zrem', key, '')
      redis.call('zadd', key, 'XX', string.format('%.0f', ends), id)
    end
    answers[i + 1] = 1
  else
    answers[i + 1] = 0
  end
end
return answers
