--!df flags=allow-undeclared-keys
-- Prolongs many read holds, each if its owner still reads the lock: the lock, and the key of each
-- level.
--
-- KEYS[i]      a lock
-- ARGV[1]      not after, by the server's clock, in ms
-- ARGV[2 * i]      the owner that should read lock i
-- ARGV[2 * i + 1]  the lease, in ms
--
-- Answers {now, ..}: the server's clock in ms, then a number for each key: 1 prolonged, 0 the key
-- is gone, -1 the owner is not among its readers, or it is no lock at all. Or {'LATE', now}:
-- arrived too late, did nothing.
--
-- Atomic: Redis runs one script at a time. A key of the wrong type is caught and harms no other. A
-- time to live never shrinks; Redisson's own renewals cut the lock's to their lease, and here it
-- gets back what it lost. A level that is lost is made again, or the next read unlock of Redisson
-- would not count it. One that lasts long enough is not touched: written again a thousand times as
-- what is left of it, it would creep on. DEL comes first, of a level that should not be there,
-- because it is allowed on a server that is out of memory, and after a script's first write SET is
-- too.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local answers = {now}
for i, key in ipairs(KEYS) do
  local owner = ARGV[2 * i]
  local lease = tonumber(ARGV[2 * i + 1])
  -- A key of another type is no lock. What the server refuses this user is an error.
  local count = redis.pcall('hget', key, owner)
  if type(count) == 'table' and not string.find(count.err, 'WRONGTYPE', 1, true) then
    redis.call('hget', key, owner)
  end
  if type(count) == 'string' then
    count = tonumber(count) or 0
    local tag = key
    if not string.find(tag, '{', 1, true) then
      tag = '{' .. tag .. '}'
    end
    local levels = tag .. ':' .. owner .. ':rwlock_timeout:'
    -- While the slot is on its way to another node, what is not here is refused.
    redis.pcall('del', levels .. (count + 1))
    if redis.call('pttl', key) < lease then
      redis.call('pexpire', key, lease)
    end
    for j = 1, count do
      if redis.call('pttl', levels .. j) < lease then
        redis.call('set', levels .. j, 1, 'px', lease)
      end
    end
    answers[i + 1] = 1
  elseif redis.call('exists', key) == 0 then
    answers[i + 1] = 0
  else
    answers[i + 1] = -1
  end
end
return answers
