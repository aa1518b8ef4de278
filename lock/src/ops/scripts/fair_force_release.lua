-- Ends any hold of a fair lock and wakes the next waiter, even if there was no hold.
--
-- KEYS[1]  the lock
-- KEYS[2]  the queue: a list of owners, the next one first
-- KEYS[3]  the liveness deadline of each: a sorted set of times in ms
-- KEYS[4]  the lock's channel; each waiter's own channel has its owner as a suffix
-- KEYS[5]  the request sequence: its last call, and what was answered
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  message
-- ARGV[3]  the command that publishes
-- ARGV[4]  the call's number in its sequence
-- ARGV[5]  how long to remember the call, in ms
--
-- Answers 1: there was a hold. 0: there was none. {'LATE', now}: arrived too late, or after the
-- next call of its sequence, and did nothing. A key that holds something else than such a lock: an
-- error that says what, and it stays. Data where list or set should be stays too, and is no error.
--
-- Atomic: Redis runs one script at a time. The answer is remembered as that of the sequence's last
-- call, so a copy does not end a later hold. A copy that arrives after the record expired is
-- refused.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local record = redis.call('get', KEYS[5])
local last, known = string.match(record or '', '^(%d+) (-?%d+)$')
if now > tonumber(ARGV[1]) or tonumber(last or 0) > tonumber(ARGV[4]) then
  return {'LATE', now}
end
if last == ARGV[4] then
  return tonumber(known)
end
local found = recognize(KEYS[1])
if found ~= 'none' and found ~= 'lock' then
  return refusal(found)
end
local list_type, set_type = redis.call('type', KEYS[2]).ok, redis.call('type', KEYS[3]).ok
local ended = redis.call('exists', KEYS[1])
-- What this user may not write is an error before anything ends. A server that is out of memory
-- accepts the record after DEL.
local noted = redis.pcall('set', KEYS[5], ARGV[4] .. ' ' .. ended, 'px', ARGV[5])
if noted.err and not string.find(noted.err, 'OOM', 1, true) then
  return redis.error_reply("ERR 'set': " .. noted.err)
end
local gone = redis.pcall('del', KEYS[1])
if type(gone) == 'table' then
  redis.call('set', KEYS[5], record or '', 'px', ARGV[5])
  return redis.error_reply("ERR 'del': " .. gone.err)
end
if noted.err then
  redis.call('set', KEYS[5], ARGV[4] .. ' ' .. ended, 'px', ARGV[5])
end
if (list_type ~= 'list' and list_type ~= 'none') or (set_type ~= 'zset' and set_type ~= 'none') then
  return ended
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
  if head then
    redis.call(ARGV[3], KEYS[4] .. ':' .. head, ARGV[2])
  else
    redis.call('del', KEYS[3])
  end
end)
return told and ended or {'UNTOLD', tostring(why), ended}
