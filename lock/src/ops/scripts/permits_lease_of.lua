-- Answers the remaining lease of a permit.
--
-- KEYS[1]  the leases: ids and when they end
-- ARGV[1]  id
--
-- Answers how many ms are left of its lease, -1 if it has none, -2 if no permit of that id is
-- taken. A key of another type is an error.
--
-- It changes nothing.
local score = redis.call('zscore', KEYS[1], ARGV[1])
if not score then
  return -2
end
if score == '922337203685477' then
  return -1
end
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left = tonumber(score) - now
if left <= 0 then
  return -2
end
return left
