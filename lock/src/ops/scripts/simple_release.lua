-- Ends a hold: deletes the key if it holds the owner.
--
-- KEYS[1]  the lock
-- ARGV[1]  owner
--
-- Answers {1, now}: ended. {0, now}: there is no such key. {-1, now}: it is another owner's, or not
-- a lock. `now` is the server's clock in ms.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again. DEL
-- is allowed on a server that is out of memory.
local answer = 0
-- A key of another type is no lock. What the server refuses this user is an error.
local found = redis.pcall('getrange', KEYS[1], 0, 128)
if type(found) == 'table' and not string.find(found.err, 'WRONGTYPE', 1, true) then
  redis.call('getrange', KEYS[1], 0, 128)
end
if found == ARGV[1] then
  redis.call('del', KEYS[1])
  answer = 1
elseif redis.call('exists', KEYS[1]) == 1 then
  answer = -1
end
local time = redis.call('time')
return {answer, time[1] * 1000 + math.floor(time[2] / 1000)}
