-- Records how a run of a job's slot has ended, if the owner still has the slot's lock.
--
-- KEYS[1]  the lock of the slot
-- KEYS[2]  the record of the slot: a hash
-- ARGV[1]  owner
-- ARGV[2]  how long the record is kept, in ms
-- ARGV[3]  `done`: the slot has run; `failed`: this attempt has failed
-- ARGV[4]  the exit code, or an empty text
--
-- Answers 1: recorded, now or by an earlier copy. 0: the owner does not have the lock.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: a copy that comes after the lock
-- was released finds what the first has recorded, or nothing that is the owner's. The first write
-- is PEXPIRE, which is allowed on a server that is out of memory, and after a script's first write
-- HSET is too.
local owner = redis.call('hget', KEYS[2], 'owner')
if owner == ARGV[1] and redis.call('hget', KEYS[2], 'state') == ARGV[3] then
  return 1
end
-- A key of another type is no lock. What the server refuses this user is an error.
local has = redis.pcall('hexists', KEYS[1], ARGV[1])
if type(has) == 'table' and not string.find(has.err, 'WRONGTYPE', 1, true) then
  redis.call('hexists', KEYS[1], ARGV[1])
end
if has ~= 1 then
  return 0
end
redis.call('pexpire', KEYS[2], ARGV[2])
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('hset', KEYS[2], 'state', ARGV[3], 'owner', ARGV[1], 'ended', now, 'exit', ARGV[4])
redis.call('pexpire', KEYS[2], ARGV[2])
return 1
