-- Takes a fair lock for an owner if it is free and the owner's turn. If not, and the owner waits,
-- enters the queue or renews the liveness deadline.
--
-- KEYS[1]  the lock
-- KEYS[2]  the queue: a list of owners, the next one first
-- KEYS[3]  the liveness deadline of each: a sorted set of times in ms
-- KEYS[4]  the lock's channel; each waiter's own channel has its owner as a suffix
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  owner
-- ARGV[3]  lease, in ms
-- ARGV[4]  1: the owner waits. 0: it does not, and never enters the queue
-- ARGV[5]  the liveness time of a waiter, in ms
-- ARGV[6]  the longest sleep of the first two in the queue, in ms
-- ARGV[7]  of the others
-- ARGV[8]  message
-- ARGV[9]  the command that publishes
-- ARGV[10] what a thread of Redisson subtracts from the deadlines behind it when its turn comes, in
--          ms
--
-- Answers nil: taken. A number: not its turn, the time to sleep in ms, at least 1; for an owner
-- that does not wait, any number. {'LATE', now}: arrived too late, did nothing. {'UNTOLD', why,
-- ..}: one of these, but the server refused the message that wakes the next waiter. A key that is
-- no lock is an error, and it stays.
--
-- Atomic: Redis runs one script at a time. Sent twice, it takes or queues once. List and set change
-- together; an owner in one only is repaired. Each key is read before the first write, so a wrong
-- type is an error that changes nothing. A server that is out of memory refuses a new owner, whose
-- first write is HSET or RPUSH, unless dead waiters make room. It accepts waiters that renew their
-- deadline or take the lock: their first write is ZREM. If the server refuses PEXPIRE, no lock is
-- left; and a waiter's deadline is never removed before it is written anew.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local owner, lease, liveness = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])
local near, far = tonumber(ARGV[6]), tonumber(ARGV[7])
-- Waiters of this library renew their deadlines. Redisson's do not, and have a UUID of another
-- version.
local function is_ours(other)
  return string.sub(other, 15, 15) == '8'
end
-- An earlier copy took it.
if redis.call('hexists', KEYS[1], owner) == 1 then
  redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), lease))
  return nil
end
local lasts = redis.call('pttl', KEYS[1])
if lasts ~= -2 then
  -- What cannot be a lock is not waited for. The values of a lock are counts, but for its mode.
  -- The fields of a lock without an end begin with an owner, a UUID and a number; other clients
  -- may have other owners, and their locks end. A few fields are looked at, chosen at random,
  -- however many there are. For a user that may not look, everything is a lock.
  local fields = redis.pcall('hrandfield', KEYS[1], 4, 'withvalues')
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    local is_owner = string.sub(field, 9, 9) == '-' and string.sub(field, 37, 37) == ':'
      and string.match(field, '^%x+%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x+:%d+')
    local is_lock = (is_owner or lasts ~= -1) and string.match(value, '^%d+$')
    if field == 'mode' then
      is_lock = value == 'read' or value == 'write'
    end
    if not is_lock then
      return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
    end
  end
end
-- Dead waiters ahead leave the queue. The owner itself is alive.
local purged = false
local head = redis.call('lindex', KEYS[2], 0)
while head and head ~= owner do
  local deadline = tonumber(redis.call('zscore', KEYS[3], head) or 0)
  if deadline > now then
    -- A head of ours has no waiter ahead that would subtract anything. If its deadline is too late,
    -- a waiter that left subtracted less than expected, or died: all deadlines behind are too late
    -- by that much.
    local less = is_ours(head) and deadline - (now + liveness) or 0
    if less > 0 then
      for _, other in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
        deadline = tonumber(redis.call('zscore', KEYS[3], other) or 0)
        if deadline > now + liveness then
          redis.call('zrem', KEYS[3], '')
          redis.call('zadd', KEYS[3], math.max(deadline - less, now + liveness), other)
        end
      end
    end
    break
  end
  redis.call('zrem', KEYS[3], head)
  redis.call('lrem', KEYS[2], 0, head)
  purged = true
  head = redis.call('lindex', KEYS[2], 0)
end
local told
if lasts == -2 then
  if not head or head == owner then
    local following
    if head then
      redis.call('zrem', KEYS[3], owner)
      redis.call('lrem', KEYS[2], 0, owner)
      following = redis.call('lindex', KEYS[2], 0)
    end
    local strays = following and 0 or redis.call('zcard', KEYS[3])
    redis.call('hset', KEYS[1], owner, 1)
    local limited = redis.pcall('pexpire', KEYS[1], lease)
    if limited ~= 1 then
      redis.pcall('del', KEYS[1])
      return redis.error_reply("ERR 'pexpire': " .. limited.err)
    end
    if strays > 0 then
      -- Owners in the set only are not in the queue.
      redis.pcall('del', KEYS[3])
    end
    if following and lease < far then
      -- A lease that expires wakes no waiter. A short one may expire before the next waiter's own
      -- attempt.
      told = redis.pcall(ARGV[9], KEYS[4] .. ':' .. following, ARGV[8])
    end
    return type(told) == 'table' and {'UNTOLD', told.err} or nil
  end
  if purged then
    told = redis.pcall(ARGV[9], KEYS[4] .. ':' .. head, ARGV[8])
  end
end
local function answer(sleep)
  return type(told) == 'table' and {'UNTOLD', told.err, sleep} or sleep
end
if ARGV[4] == '0' then
  return answer(near)
end
local own = tonumber(redis.call('zscore', KEYS[3], owner) or 0)
local place = redis.call('lpos', KEYS[2], owner)
local before = place ~= 0 and redis.call('lindex', KEYS[2], place and place - 1 or -1)
local until_then = before and tonumber(redis.call('zscore', KEYS[3], before) or 0)
local deadline = now + liveness
-- Each thread of Redisson ahead will subtract its wait from this deadline, perhaps all of them
-- before the next attempt. If a waiter of ours ahead has asked lately and has the usual deadline,
-- there is none.
if before
  and not (is_ours(before) and until_then <= deadline and until_then > deadline - 2 * far and own <= deadline)
then
  local theirs, last = 0, nil
  for _, other in ipairs(redis.call('lrange', KEYS[2], 0, (place or 0) - 1)) do
    if not is_ours(other) then
      theirs, last = theirs + 1, other
    end
  end
  if last then
    local its = tonumber(redis.call('zscore', KEYS[3], last) or 0)
    deadline = math.max(deadline + theirs * tonumber(ARGV[10]), its)
  end
end
if place then
  redis.call('zrem', KEYS[3], '')
else
  place = redis.call('rpush', KEYS[2], owner) - 1
end
redis.call('zadd', KEYS[3], deadline, owner)
if place == 0 then
  local left = redis.call('pttl', KEYS[1])
  return answer(left < 0 and near or math.max(1, math.min(left, near)))
end
-- The second waiter asks as often as the first. Those directly ahead that count as dead within the
-- longest sleep may all be dead by then: the waiter asks when the last of them is. Whoever is ahead
-- of them wakes it, or counts as dead later.
local longest = place == 1 and near or far
local left = until_then - now
if place > 1 and left <= far then
  local ahead = redis.call('lrange', KEYS[2], 0, place - 2)
  for i = #ahead, 1, -1 do
    local its = tonumber(redis.call('zscore', KEYS[3], ahead[i]) or 0) - now
    if its > far then
      break
    end
    left = math.max(left, its)
  end
end
return answer(left > 0 and math.min(left + 1, longest) or longest)
