-- Lets a reader in, or lets the same one in again, as a request sent twice does.
--
-- KEYS[1]  the lock
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  owner
-- ARGV[3]  lease, in ms
-- ARGV[4]  the field of the same holder's write hold, under which it may read; empty if there is
--          none
--
-- Answers nil: taken. A number: busy, time to live in ms, -1 for none. {'LATE', now}: arrived too
-- late, did nothing.
--
-- Atomic: Redis runs one script at a time. Beside the hash stands one key for each level of
-- nesting, with the time to live of that level: Redisson's read unlock gives the hash the longest
-- of them. A hash without a mode is a lock of another kind, and busy. A time to live never shrinks,
-- and one that is long enough is not touched: written again a thousand times as what is left of it,
-- it would creep on.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local mode = redis.call('hget', KEYS[1], 'mode')
local open = mode == 'read' or redis.call('exists', KEYS[1]) == 0
if mode == 'write' then
  open = redis.call('hexists', KEYS[1], ARGV[2]) == 1
    or (ARGV[4] ~= '' and redis.call('hexists', KEYS[1], ARGV[4]) == 1)
end
if not open then
  return redis.call('pttl', KEYS[1])
end
local lease = tonumber(ARGV[3])
local tag = KEYS[1]
if not string.find(tag, '{', 1, true) then
  tag = '{' .. tag .. '}'
end
local level = tag .. ':' .. ARGV[2] .. ':rwlock_timeout:1'
-- Before anything is written: while the slot is on its way to another node, this is refused.
local lasts = redis.call('pttl', level)
-- Written also where it is what it was: replicas are asked for what was written, and a copy may
-- have nothing else to write while what the first one wrote has not reached them.
redis.call('hset', KEYS[1], 'mode', mode or 'read')
redis.call('hsetnx', KEYS[1], ARGV[2], 1)
if redis.call('pttl', KEYS[1]) < lease then
  redis.call('pexpire', KEYS[1], lease)
end
if lasts < lease then
  redis.call('set', level, 1, 'px', lease)
end
return nil
