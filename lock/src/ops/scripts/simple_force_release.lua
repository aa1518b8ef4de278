-- Ends any hold of the lock.
--
-- KEYS[1]  the lock
-- KEYS[2]  the request sequence: its last call, and what was answered
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  the call's number in its sequence
-- ARGV[3]  how long to remember the call, in ms
--
-- Answers 1: there was a hold. 0: there was none. {'LATE', now}: arrived too late, or after the
-- next call of its sequence, and did nothing. A key that holds something else than such a lock: an
-- error that says what, and it stays.
--
-- Atomic: Redis runs one script at a time. The answer is remembered as that of the sequence's last
-- call, so a copy does not end a later hold. A copy that arrives after the record expired is
-- refused.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local record = redis.call('get', KEYS[2])
local last, known = string.match(record or '', '^(%d+) (-?%d+)$')
if now > tonumber(ARGV[1]) or tonumber(last or 0) > tonumber(ARGV[2]) then
  return {'LATE', now}
end
if last == ARGV[2] then
  return tonumber(known)
end
local found = recognize(KEYS[1])
if found ~= 'none' and found ~= 'simple' then
  return refusal(found)
end
local ended = found == 'simple' and 1 or 0
-- What this user may not write is an error before anything ends. A server that is out of memory
-- accepts the record after DEL.
local noted = redis.pcall('set', KEYS[2], ARGV[2] .. ' ' .. ended, 'px', ARGV[3])
if noted.err and not string.find(noted.err, 'OOM', 1, true) then
  return redis.error_reply("ERR 'set': " .. noted.err)
end
local gone = redis.pcall('del', KEYS[1])
if type(gone) == 'table' then
  redis.call('set', KEYS[2], record or '', 'px', ARGV[3])
  return redis.error_reply("ERR 'del': " .. gone.err)
end
if noted.err then
  redis.call('set', KEYS[2], ARGV[2] .. ' ' .. ended, 'px', ARGV[3])
end
return ended
