-- Takes an owner out of a fair lock, whether he holds it or stands in line, and tells whose turn it is. A stranger's
-- release changes nothing but that.
--
-- KEYS[1]  the lock
-- KEYS[2]  the line: a list of owners, the next one first
-- KEYS[3]  until when each of them is believed to live: a sorted set of moments in ms
-- KEYS[4]  the lock's channel; each in line listens to one of his own, which has his name behind it
-- ARGV[1]  owner
-- ARGV[2]  message
-- ARGV[3]  the command that publishes
--
-- Answers {1, now}: his hold is ended. {0, now}: there is no such key. {-1, now}: it is somebody else's, or no lock.
-- `now` is the server's clock in ms: an owner whose acquire may still be on its way releases until `now` is past that
-- acquire's not-after.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again. The first write is DEL,
-- ZREM or LREM, which are allowed on a server that is out of memory. If somebody's data is where list or set should be,
-- it stays, and the hold ends all the same.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local owner = ARGV[1]
local line, moments = redis.call('type', KEYS[2]).ok, redis.call('type', KEYS[3]).ok
local answer = 0
if redis.pcall('hexists', KEYS[1], owner) == 1 then
  -- Whoever holds it stands in no line.
  redis.call('del', KEYS[1])
  answer = 1
else
  if redis.call('exists', KEYS[1]) == 1 then
    answer = -1
  end
  -- No moment of those behind changes. One of ours added nothing to theirs.
  if moments == 'zset' then
    redis.call('zrem', KEYS[3], owner)
  end
  if line == 'list' then
    redis.call('lrem', KEYS[2], 0, owner)
  end
end
if (line ~= 'list' and line ~= 'none') or (moments ~= 'zset' and moments ~= 'none') then
  return {answer, now}
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
if not head then
  -- Who stands in the set only has no turn to wait for.
  redis.call('del', KEYS[3])
elseif answer >= 0 then
  redis.call(ARGV[3], KEYS[4] .. ':' .. head, ARGV[2])
end
return {answer, now}
