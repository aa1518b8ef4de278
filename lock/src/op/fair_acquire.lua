-- Takes a fair lock for an owner if it is free and his turn. If not, and he waits, he stands in line, and says that he
-- lives.
--
-- KEYS[1]  the lock
-- KEYS[2]  the line: a list of owners, the next one first
-- KEYS[3]  until when each of them is believed to live: a sorted set of moments in ms
-- KEYS[4]  the lock's channel; each in line listens to one of his own, which has his name behind it
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  owner
-- ARGV[3]  lease, in ms
-- ARGV[4]  1: he waits. 0: he does not, and never stands in line
-- ARGV[5]  how long one in line is believed to live, in ms
-- ARGV[6]  the longest sleep of the first two in line, in ms
-- ARGV[7]  of the others
-- ARGV[8]  message
-- ARGV[9]  the command that publishes
--
-- Answers nil: taken. A number: not his turn, the time to sleep in ms, at least 1; for one who does not wait, only a
-- number. {'LATE', now}: arrived too late, did nothing.
--
-- Atomic: Redis runs one script at a time. Sent twice, it takes or lines up once. A moment in KEYS[3] is never brought
-- nearer by its owner. List and set change together; who stands in one only is mended.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local owner, lease, believed = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local near, far = tonumber(ARGV[6]), tonumber(ARGV[7])
-- An earlier copy took it.
if redis.call('hexists', KEYS[1], owner) == 1 then
  redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), lease))
  return nil
end
-- The dead before him lose their place. He himself lives.
local purged = false
local head = redis.call('lindex', KEYS[2], 0)
while head and head ~= owner do
  local until_then = redis.call('zscore', KEYS[3], head)
  if until_then and tonumber(until_then) > now then
    break
  end
  redis.call('lrem', KEYS[2], 0, head)
  redis.call('zrem', KEYS[3], head)
  purged = true
  head = redis.call('lindex', KEYS[2], 0)
end
if redis.call('exists', KEYS[1]) == 0 then
  if not head or head == owner then
    local following
    if head then
      redis.call('lrem', KEYS[2], 0, owner)
      redis.call('zrem', KEYS[3], owner)
      following = redis.call('lindex', KEYS[2], 0)
    end
    if not following then
      -- Who stands in the set only has no turn to wait for.
      redis.call('del', KEYS[3])
    else
      -- As Redisson has it, moments add up along the line: what he added is taken off those behind him.
      local until_then = redis.call('zscore', KEYS[3], following)
      if until_then and tonumber(until_then) > now + believed then
        for _, other in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
          local moment = tonumber(redis.call('zscore', KEYS[3], other) or 0)
          if moment > now + believed then
            redis.call('zadd', KEYS[3], math.max(moment - believed, now + believed), other)
          end
        end
      end
      -- The end of a hold is told to nobody if the lease ends it. A short one may, before the next looks by himself.
      if lease < far then
        redis.call(ARGV[9], KEYS[4] .. ':' .. following, ARGV[8])
      end
    end
    redis.call('hset', KEYS[1], owner, 1)
    redis.call('pexpire', KEYS[1], lease)
    return nil
  end
  if purged then
    redis.call(ARGV[9], KEYS[4] .. ':' .. head, ARGV[8])
  end
end
if ARGV[4] == '0' then
  return near
end
local moment = now + believed
local place = redis.call('lpos', KEYS[2], owner)
if not place then
  local last = redis.call('lindex', KEYS[2], -1)
  local until_then = last and tonumber(redis.call('zscore', KEYS[3], last) or 0) or 0
  -- A Redisson thread before him takes what it added off his moment when its turn comes.
  if until_then > moment then
    moment = until_then + believed
  end
  place = redis.call('rpush', KEYS[2], owner) - 1
end
moment = math.max(moment, tonumber(redis.call('zscore', KEYS[3], owner) or 0))
-- A server that is out of memory refuses this to one who stands there already. He keeps his place as long as it lasts.
redis.pcall('zadd', KEYS[3], moment, owner)
if place == 0 then
  local left = redis.call('pttl', KEYS[1])
  return left < 0 and near or math.max(1, math.min(left, near))
end
-- The next one looks as often as the first. And everybody looks when the one before him is taken for dead: perhaps all
-- are that stand before him.
local longest = place == 1 and near or far
local before = redis.call('zscore', KEYS[3], redis.call('lindex', KEYS[2], place - 1))
local left = tonumber(before or 0) - now
return left > 0 and math.min(left + 1, longest) or longest
