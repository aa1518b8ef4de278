-- Gives back the attempt of an owner whose begin got no reply, so that its run did not start.
--
-- KEYS[1]  the record of the slot: a hash
-- ARGV[1]  owner
--
-- Answers {1, now}: given back. {0, now}: no attempt of this owner is counted there. `now` is the
-- server's clock in ms: an owner whose begin may still be on its way gives back until `now` is past
-- that begin's not-after.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again, and
-- what was given back is not counted. The first write is HDEL, which is allowed on a server that is
-- out of memory, and after a script's first write HSET is too.
local answer = 0
local counted = redis.pcall('hget', KEYS[1], 'counted')
local first, last
if type(counted) == 'string' then
  first, last = string.find(counted, ARGV[1] .. ' ', 1, true)
end
if first then
  counted = string.sub(counted, 1, first - 1) .. string.sub(counted, last + 1)
  local attempts = (tonumber(redis.call('hget', KEYS[1], 'attempts') or 0) or 0) - 1
  redis.call('hdel', KEYS[1], 'counted')
  redis.call('hset', KEYS[1], 'counted', counted, 'attempts', attempts)
  answer = 1
end
local time = redis.call('time')
return {answer, time[1] * 1000 + math.floor(time[2] / 1000)}
