-- Takes an owner out of a fair lock, whether he holds it or stands in line, and tells whose turn it is. A stranger's
-- release changes nothing but that.
--
-- KEYS[1]  the lock
-- KEYS[2]  the line: a list of owners, the next one first
-- KEYS[3]  until when each of them is believed to live: a sorted set of moments in ms
-- KEYS[4]  the lock's channel; each in line listens to one of his own, which has his name behind it
-- ARGV[1]  owner
-- ARGV[2]  how long one in line is believed to live, in ms
-- ARGV[3]  message
-- ARGV[4]  the command that publishes
--
-- Answers {1, now}: his hold is ended. {0, now}: there is no such key. {-1, now}: it is somebody else's, or no lock.
-- `now` is the server's clock in ms: an owner whose acquire may still be on its way releases until `now` is past that
-- acquire's not-after.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again. The first write is DEL,
-- ZREM or LREM, which are allowed on a server that is out of memory.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local owner, believed = ARGV[1], tonumber(ARGV[2])
local answer = 0
if redis.pcall('hexists', KEYS[1], owner) == 1 then
  -- Whoever holds it stands in no line.
  redis.call('del', KEYS[1])
  answer = 1
else
  if redis.call('exists', KEYS[1]) == 1 then
    answer = -1
  end
  local own = tonumber(redis.call('zscore', KEYS[3], owner) or 0)
  local place = redis.call('lpos', KEYS[2], owner)
  redis.call('zrem', KEYS[3], owner)
  if place then
    redis.call('lrem', KEYS[2], 0, owner)
    -- As Redisson has it, moments add up along the line: what he added is taken off those behind him.
    local following = redis.call('lindex', KEYS[2], place)
    local until_then = following and tonumber(redis.call('zscore', KEYS[3], following) or 0) or 0
    if until_then > now + believed and (place == 0 or own > now + believed) then
      for _, other in ipairs(redis.call('lrange', KEYS[2], place, -1)) do
        local moment = tonumber(redis.call('zscore', KEYS[3], other) or 0)
        if moment > now + believed then
          redis.call('zadd', KEYS[3], math.max(moment - believed, now + believed), other)
        end
      end
    end
  end
end
-- The dead lose their place.
local head = redis.call('lindex', KEYS[2], 0)
while head do
  local until_then = redis.call('zscore', KEYS[3], head)
  if until_then and tonumber(until_then) > now then
    break
  end
  redis.call('lrem', KEYS[2], 0, head)
  redis.call('zrem', KEYS[3], head)
  head = redis.call('lindex', KEYS[2], 0)
end
if not head then
  -- Who stands in the set only has no turn to wait for.
  redis.call('del', KEYS[3])
elseif answer >= 0 then
  redis.call(ARGV[4], KEYS[4] .. ':' .. head, ARGV[3])
end
return {answer, now}
