-- Removes an owner from a fair lock, whether it holds the lock or waits, and wakes the next waiter.
-- A release by another owner does only the latter.
--
-- KEYS[1]  the lock
-- KEYS[2]  the queue: a list of owners, the next one first
-- KEYS[3]  the liveness deadline of each: a sorted set of times in ms
-- KEYS[4]  the lock's channel; each waiter's own channel has its owner as a suffix
-- ARGV[1]  owner
-- ARGV[2]  message
-- ARGV[3]  the command that publishes
--
-- Answers {1, now}: the hold is ended. {0, now}: there is no such key. {-1, now}: it is another
-- owner's, or not a lock. `now` is the server's clock in ms: an owner whose acquire may still be on
-- its way releases until `now` is past that acquire's not-after. {'UNTOLD', why, ..}: one of these,
-- but the server refused what follows the release: the message, or to remove dead waiters.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again. The
-- first write is DEL, ZREM or LREM, which are allowed on a server that is out of memory. If list or
-- set hold other data, they stay, and the hold ends all the same.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local owner = ARGV[1]
local list_type, set_type = redis.call('type', KEYS[2]).ok, redis.call('type', KEYS[3]).ok
local answer = 0
-- A key of another type is no lock. What the server refuses this user is an error.
local has = redis.pcall('hexists', KEYS[1], owner)
if type(has) == 'table' and not string.find(has.err, 'WRONGTYPE', 1, true) then
  redis.call('hexists', KEYS[1], owner)
end
if has == 1 then
  -- A holder is not in the queue.
  redis.call('del', KEYS[1])
  answer = 1
else
  if redis.call('exists', KEYS[1]) == 1 then
    answer = -1
  end
  -- The deadlines behind do not change. A waiter of ours adds nothing to them.
  if set_type == 'zset' then
    redis.call('zrem', KEYS[3], owner)
  end
  if list_type == 'list' then
    redis.call('lrem', KEYS[2], 0, owner)
  end
end
if (list_type ~= 'list' and list_type ~= 'none') or (set_type ~= 'zset' and set_type ~= 'none') then
  return {answer, now}
end
local told, why = pcall(function()
  -- Dead waiters leave the queue.
  local head = redis.call('lindex', KEYS[2], 0)
  while head do
    local until_then = redis.call('zscore', KEYS[3], head)
    if until_then and tonumber(until_then) > now then
      break
    end
    redis.call('zrem', KEYS[3], head)
    redis.call('lrem', KEYS[2], 0, head)
    head = redis.call('lindex', KEYS[2], 0)
  end
  if not head then
    -- Owners in the set only are not in the queue.
    redis.call('del', KEYS[3])
  elseif answer >= 0 then
    redis.call(ARGV[3], KEYS[4] .. ':' .. head, ARGV[2])
  end
end)
return told and {answer, now} or {'UNTOLD', tostring(why), {answer, now}}
