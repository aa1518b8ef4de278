-- Ends a hold whose key stays for a while. A command of another owner changes nothing.
--
-- KEYS[1]  the lock
-- ARGV[1]  owner
-- ARGV[2]  the ending of the owner under which the key stays
-- ARGV[3]  for how long, in ms
--
-- Answers {1, now}: ended, now or by an earlier copy. {0, now}: there is no such key. {-1, now}: it
-- is another owner's, or not a lock. `now` is the server's clock in ms.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again, and
-- a copy finds the key under the other owner. The first write is PEXPIRE, which is allowed on a
-- server that is out of memory, and after a script's first write SET is too.
local answer = 0
local kept = ARGV[1] .. ARGV[2]
-- A key of another type is no lock. What the server refuses this user is an error.
local found = redis.pcall('getrange', KEYS[1], 0, 128)
if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then
  redis.call('getrange', KEYS[1], 0, 128)
end
if found == ARGV[1] then
  redis.call('pexpire', KEYS[1], ARGV[3])
  redis.call('set', KEYS[1], kept, 'px', ARGV[3])
  answer = 1
elseif found == kept then
  answer = 1
elseif redis.call('exists', KEYS[1]) == 1 then
  answer = -1
end
local time = redis.call('time')
return {answer, time[1] * 1000 + math.floor(time[2] / 1000)}
