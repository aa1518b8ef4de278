--!df flags=allow-undeclared-keys
-- Writes the count of an existing reader: one level of nesting more or less. Never creates.
--
-- KEYS[1]  the lock
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  owner
-- ARGV[3]  count
-- ARGV[4]  lease in ms, 0 to leave the time to live as it is
--
-- Answers 1: written. 0: the owner holds nothing here. {'LATE', now}: arrived too late, did
-- nothing.
--
-- Atomic: Redis runs one script at a time. Each level has a key. Guards go in any order, so the
-- level that goes need not be the guard that went: the longest time to live is handed to the first
-- level, and none shrinks. One that is long enough is not touched: written again a thousand times
-- as what is left of it, it would creep on. DEL comes first, of a level that should not be there,
-- because it is allowed on a server that is out of memory, and after a script's first write the
-- others are too. The levels that go are deleted last: if the server refuses a write, none is
-- missing.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local had = redis.call('hget', KEYS[1], ARGV[2])
if not had then
  return 0
end
had = tonumber(had) or 0
local count = tonumber(ARGV[3])
local lease = tonumber(ARGV[4])
local tag = KEYS[1]
if not string.find(tag, '{', 1, true) then
  tag = '{' .. tag .. '}'
end
local levels = tag .. ':' .. ARGV[2] .. ':rwlock_timeout:'
local longest = 0
for i = count + 1, had do
  longest = math.max(longest, redis.call('pttl', levels .. i))
end
redis.call('del', levels .. (math.max(had, count) + 1))
if lease > 0 and redis.call('pttl', KEYS[1]) < lease then
  redis.call('pexpire', KEYS[1], lease)
end
if lease > 0 then
  for i = math.min(had + 1, count), count do
    if redis.call('pttl', levels .. i) < lease then
      redis.call('set', levels .. i, 1, 'px', lease)
    end
  end
end
if longest > 0 and longest > redis.call('pttl', levels .. 1) then
  redis.call('set', levels .. 1, 1, 'px', longest)
end
redis.call('hset', KEYS[1], ARGV[2], ARGV[3])
for i = count + 1, had do
  redis.call('del', levels .. i)
end
return 1
