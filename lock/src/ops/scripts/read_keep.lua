--!df flags=allow-undeclared-keys
-- Ends a reader's hold, whatever its count, whose field and first level stay for a while under
-- another owner, and wakes a waiter, which reads how long. A command of another owner changes
-- nothing. The levels of a reader without a field are removed.
--
-- KEYS[1]  the lock
-- KEYS[2]  its channel, among the keys so that this is refused while the slot is on its way to
--          another node
-- ARGV[1]  owner
-- ARGV[2]  the ending of the owner under which it stays
-- ARGV[3]  for how long, in ms
-- ARGV[4]  the command that publishes
-- ARGV[5]  message
--
-- Answers {1, now}: ended, now or by an earlier copy. {0, now}: there is no such key. {-1, now}:
-- the owner is not among its readers. `now` is the server's clock in ms. {'UNTOLD', why, {1, now}}:
-- ended, but the server refused the message.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again, and
-- a copy finds the other owner. The first write is PEXPIRE or DEL, which a server allows that is
-- out of memory, and after a script's first write HSET is allowed too. Where there are other
-- readers, or a writer, the lock's time to live is not shortened.
local answer, told = 0, nil
local kept = ARGV[1] .. ARGV[2]
local left = tonumber(ARGV[3])
local tag = KEYS[1]
if not string.find(tag, '{', 1, true) then
  tag = '{' .. tag .. '}'
end
local levels = tag .. ':' .. ARGV[1] .. ':rwlock_timeout:'
-- A key of another type is no lock. What the server refuses this user is an error.
local count = redis.pcall('hget', KEYS[1], ARGV[1])
if type(count) == 'table' and not string.find(count.err, 'WRONGTYPE', 1, true) then
  redis.call('hget', KEYS[1], ARGV[1])
end
if type(count) == 'string' then
  if redis.call('hlen', KEYS[1]) <= 2 or redis.call('pttl', KEYS[1]) < left then
    redis.call('pexpire', KEYS[1], left)
  end
  for i = 1, tonumber(count) or 0 do
    redis.call('del', levels .. i)
  end
  redis.call('hset', KEYS[1], kept, 1)
  redis.call('set', tag .. ':' .. kept .. ':rwlock_timeout:1', 1, 'px', left)
  redis.call('hdel', KEYS[1], ARGV[1])
  told = redis.pcall(ARGV[4], KEYS[2], ARGV[5])
  answer = 1
elseif not count and redis.call('hexists', KEYS[1], kept) == 1 then
  answer = 1
else
  -- Something else removed the field and left the levels.
  local i = 1
  while redis.call('del', levels .. i) == 1 do
    i = i + 1
  end
  if redis.call('exists', KEYS[1]) == 1 then
    answer = -1
  end
end
local time = redis.call('time')
local answers = {answer, time[1] * 1000 + math.floor(time[2] / 1000)}
return type(told) == 'table' and {'UNTOLD', told.err, answers} or answers
