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
-- ARGV[10] what a thread of Redisson takes off the moments of those behind it when its turn comes, in ms
--
-- Answers nil: taken. A number: not his turn, the time to sleep in ms, at least 1; for one who does not wait, only a
-- number. {'LATE', now}: arrived too late, did nothing.
--
-- Atomic: Redis runs one script at a time. Sent twice, it takes or lines up once. List and set change together; who
-- stands in one only is mended. Each key is read before the first write, so a wrong type is an error that leaves all as
-- it was. A server that is out of memory refuses who comes anew, whose first write is HSET or RPUSH, unless dead ones
-- make room for him; and it lets those in line say that they live, and take the lock: their first write is ZREM.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local owner, lease, believed = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local near, far = tonumber(ARGV[6]), tonumber(ARGV[7])
-- One of ours says again and again that it lives. One of Redisson's has a UUID of another version.
local function is_ours(other)
  return string.sub(other, 15, 15) == '8'
end
-- An earlier copy took it.
if redis.call('hexists', KEYS[1], owner) == 1 then
  redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), lease))
  return nil
end
-- The dead before him lose their place. He himself lives.
local purged = false
local head = redis.call('lindex', KEYS[2], 0)
while head and head ~= owner do
  local moment = tonumber(redis.call('zscore', KEYS[3], head) or 0)
  if moment > now then
    -- Nobody before one of ours at the head will take anything off any more. If it is believed too long, one who has
    -- gone took off less than was reckoned with, or died: all behind have that much too much.
    local less = is_ours(head) and moment - (now + believed) or 0
    if less > 0 then
      for _, other in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
        moment = tonumber(redis.call('zscore', KEYS[3], other) or 0)
        if moment > now + believed then
          redis.call('zrem', KEYS[3], other)
          redis.call('zadd', KEYS[3], math.max(moment - less, now + believed), other)
        end
      end
    end
    break
  end
  redis.call('zrem', KEYS[3], head)
  redis.call('lrem', KEYS[2], 0, head)
  purged = true
  head = redis.call('lindex', KEYS[2], 0)
end
if redis.call('exists', KEYS[1]) == 0 then
  if not head or head == owner then
    local following
    if head then
      redis.call('zrem', KEYS[3], owner)
      redis.call('lrem', KEYS[2], 0, owner)
      following = redis.call('lindex', KEYS[2], 0)
    end
    local strays = following and 0 or redis.call('zcard', KEYS[3])
    if following and lease < far then
      -- The end of a hold is told to nobody if the lease ends it. A short one may, before the next looks by himself.
      redis.call(ARGV[9], KEYS[4] .. ':' .. following, ARGV[8])
    end
    redis.call('hset', KEYS[1], owner, 1)
    redis.call('pexpire', KEYS[1], lease)
    if strays > 0 then
      -- Who stands in the set only has no turn to wait for.
      redis.call('del', KEYS[3])
    end
    return nil
  end
  if purged then
    redis.call(ARGV[9], KEYS[4] .. ':' .. head, ARGV[8])
  end
end
if ARGV[4] == '0' then
  return near
end
local own = tonumber(redis.call('zscore', KEYS[3], owner) or 0)
local place = redis.call('lpos', KEYS[2], owner)
local before = place ~= 0 and redis.call('lindex', KEYS[2], place and place - 1 or -1)
local until_then = before and tonumber(redis.call('zscore', KEYS[3], before) or 0)
local moment = now + believed
-- Each thread of Redisson before him will take its wait off his moment, perhaps all of them before he asks again. If
-- one of ours before him has asked lately and is believed no longer than usual, there is none.
if before
  and not (is_ours(before) and until_then <= moment and until_then > moment - 2 * far and own <= moment)
then
  local theirs, last = 0, nil
  for _, other in ipairs(redis.call('lrange', KEYS[2], 0, (place or 0) - 1)) do
    if not is_ours(other) then
      theirs, last = theirs + 1, other
    end
  end
  if last then
    local its = tonumber(redis.call('zscore', KEYS[3], last) or 0)
    moment = math.max(moment + theirs * tonumber(ARGV[10]), its)
  end
end
if place then
  redis.call('zrem', KEYS[3], owner)
else
  place = redis.call('rpush', KEYS[2], owner) - 1
end
redis.call('zadd', KEYS[3], moment, owner)
if place == 0 then
  local left = redis.call('pttl', KEYS[1])
  return left < 0 and near or math.max(1, math.min(left, near))
end
-- The next one looks as often as the first. And everybody looks when the one before him is taken for dead: perhaps all
-- are that stand before him.
local longest = place == 1 and near or far
local left = until_then - now
return left > 0 and math.min(left + 1, longest) or longest
