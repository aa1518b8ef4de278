--!df flags=allow-undeclared-keys
-- Ends a writer's hold, whatever its count, whose key stays for a while under another owner, and
-- wakes the waiters, which read how long. If it reads too, it is released: its read hold stays, and
-- keeps other writers out. A command of another owner changes nothing.
--
-- KEYS[1]  the lock
-- KEYS[2]  its channel, among the keys so that this is refused while the slot is on its way to
--          another node: levels
--          may be there that are not here, and would be taken for over
-- ARGV[1]  the writer's field
-- ARGV[2]  the ending of the field under which it stays
-- ARGV[3]  for how long, in ms
-- ARGV[4]  the command that publishes
-- ARGV[5]  the message that wakes one, and is kept for one that is not yet asleep
-- ARGV[6]  the message that wakes every waiter
--
-- Answers {1, now}: ended, now or by an earlier copy. {0, now}: there is no such key. {-1, now}:
-- the owner does not write here. `now` is the server's clock in ms. {'UNTOLD', why, {1, now}}:
-- ended, but the server refused the messages.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again, and
-- a copy finds the other field. The first write is PEXPIRE, which is allowed on a server that is
-- out of memory, and after a script's first write HSET is too.
local answer, told = 0, nil
local kept = ARGV[1] .. ARGV[2]
-- A key of another type is no lock. What the server refuses this user is an error.
local has = redis.pcall('hexists', KEYS[1], ARGV[1])
if type(has) == 'table' and not string.find(has.err, 'WRONGTYPE', 1, true) then
  redis.call('hexists', KEYS[1], ARGV[1])
end
if has == 1 then
  local tag = KEYS[1]
  if not string.find(tag, '{', 1, true) then
    tag = '{' .. tag .. '}'
  end
  local longest = 0
  local fields = redis.call('hgetall', KEYS[1])
  for field = 1, #fields, 2 do
    for i = 1, tonumber(fields[field + 1]) or 0 do
      longest = math.max(longest, redis.call('pttl', tag .. ':' .. fields[field] .. ':rwlock_timeout:' .. i))
    end
  end
  if longest > 0 then
    redis.call('pexpire', KEYS[1], longest)
    redis.call('hset', KEYS[1], 'mode', 'read')
  else
    redis.call('pexpire', KEYS[1], ARGV[3])
    redis.call('hset', KEYS[1], kept, 1)
  end
  redis.call('hdel', KEYS[1], ARGV[1])
  redis.pcall(ARGV[4], KEYS[2], ARGV[6])
  told = redis.pcall(ARGV[4], KEYS[2], ARGV[5])
  answer = 1
elseif has == 0 and redis.call('hexists', KEYS[1], kept) == 1 then
  answer = 1
elseif redis.call('exists', KEYS[1]) == 1 then
  answer = -1
end
local time = redis.call('time')
local answers = {answer, time[1] * 1000 + math.floor(time[2] / 1000)}
return type(told) == 'table' and {'UNTOLD', told.err, answers} or answers
