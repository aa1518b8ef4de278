-- Ends a hold, whatever its count, whose key stays for a while, and wakes a waiter, which reads how
-- long. A command of another owner changes nothing.
--
-- KEYS[1]  the lock
-- KEYS[2]  the queue of a fair lock; none for others
-- ARGV[1]  owner
-- ARGV[2]  the ending of the owner under which the key stays
-- ARGV[3]  for how long, in ms
-- ARGV[4]  the command that publishes; none if the waiters poll, and so for what follows
-- ARGV[5]  message
-- ARGV[6]  its channel; of a fair lock, the first in the queue has its owner as a suffix
--
-- Answers {1, now}: ended, now or by an earlier copy. {0, now}: there is no such key. {-1, now}: it
-- is another owner's, or not a lock. `now` is the server's clock in ms. {'UNTOLD', why, {1, now}}:
-- ended, but the server refused the message.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again, and
-- a copy finds the key under the other owner. The first write is PEXPIRE, which is allowed on a
-- server that is out of memory, and after a script's first write HSET is too. The channel is no
-- key, as in the release. A queue that holds other data stays.
local answer, told = 0, nil
local kept = ARGV[1] .. ARGV[2]
-- A key of another type is no lock. What the server refuses this user is an error.
local has = redis.pcall('hexists', KEYS[1], ARGV[1])
if type(has) == 'table' and not string.find(has.err, 'WRONGTYPE', 1, true) then
  redis.call('hexists', KEYS[1], ARGV[1])
end
if has == 1 then
  redis.call('pexpire', KEYS[1], ARGV[3])
  redis.call('hset', KEYS[1], kept, 1)
  redis.call('hdel', KEYS[1], ARGV[1])
  answer = 1
  local head = KEYS[2] and redis.pcall('lindex', KEYS[2], 0)
  if ARGV[4] and not KEYS[2] then
    told = redis.pcall(ARGV[4], ARGV[6], ARGV[5])
  elseif type(head) == 'string' then
    told = redis.pcall(ARGV[4], ARGV[6] .. ':' .. head, ARGV[5])
  end
elseif has == 0 and redis.call('hexists', KEYS[1], kept) == 1 then
  answer = 1
elseif redis.call('exists', KEYS[1]) == 1 then
  answer = -1
end
local time = redis.call('time')
local answers = {answer, time[1] * 1000 + math.floor(time[2] / 1000)}
return type(told) == 'table' and {'UNTOLD', told.err, answers} or answers
