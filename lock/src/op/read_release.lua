-- Lets a reader go, whatever his count. If nobody is left, or nobody alive, the lock is free and the waiters are told.
-- A stranger's release changes nothing.
--
-- KEYS[1]  the lock
-- KEYS[2]  its channel
-- ARGV[1]  owner
-- ARGV[2]  message
-- ARGV[3]  the command that publishes
--
-- Answers {1, now}: let go. {0, now}: there is no such key. {-1, now}: the owner is not among its readers. `now` is the
-- server's clock in ms: an owner whose acquire may still be on its way releases until `now` is past that acquire's
-- not-after.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again. The first write is
-- HDEL, which is allowed on a server that is out of memory. Others who read keep the lock for as long as the longest of
-- their levels lasts. That is looked for only if the one who goes was the longest, or nearly, as Redisson's acquires
-- let the lock's time to live creep: else nothing changes, and a reader's leave costs the same among a thousand. A
-- writer's time to live is his own.
local answer = 0
local count = redis.pcall('hget', KEYS[1], ARGV[1])
if type(count) == 'string' then
  answer = 1
  local tag = KEYS[1]
  if not string.find(tag, '{', 1, true) then
    tag = '{' .. tag .. '}'
  end
  local own = -2
  redis.call('hdel', KEYS[1], ARGV[1])
  for i = 1, tonumber(count) or 0 do
    local level = tag .. ':' .. ARGV[1] .. ':rwlock_timeout:' .. i
    own = math.max(own, redis.call('pttl', level))
    redis.call('del', level)
  end
  local left = redis.call('hlen', KEYS[1]) > 1
  if left and redis.call('hget', KEYS[1], 'mode') == 'read' and own + 50 >= redis.call('pttl', KEYS[1]) then
    local longest = 0
    local fields = redis.call('hgetall', KEYS[1])
    for field = 1, #fields, 2 do
      for i = 1, tonumber(fields[field + 1]) or 0 do
        longest = math.max(longest, redis.call('pttl', tag .. ':' .. fields[field] .. ':rwlock_timeout:' .. i))
      end
    end
    left = longest > 0
    if left then
      redis.call('pexpire', KEYS[1], longest)
    end
  end
  if not left then
    redis.call('del', KEYS[1])
    redis.call(ARGV[3], KEYS[2], ARGV[2])
  end
elseif redis.call('exists', KEYS[1]) == 1 then
  answer = -1
end
local time = redis.call('time')
return {answer, time[1] * 1000 + math.floor(time[2] / 1000)}
