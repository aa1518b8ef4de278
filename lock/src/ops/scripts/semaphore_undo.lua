-- Undoes an acquire or a drain, or makes sure that no copy of it takes anything.
--
-- KEYS[1]  the semaphore
-- KEYS[2]  its channel
-- KEYS[3]  the request sequence: its last call, and how many it took, 0 undone
-- ARGV[1]  the call's number in its sequence
-- ARGV[2]  how long to remember the call, in ms
-- ARGV[3]  the command that publishes
--
-- Answers {1, now}: it had taken them, and they are back. {0, now}: it had not, or that was undone
-- before. `now` is the server's clock in ms. {'UNTOLD', why, {1, now}}: they are back, but the
-- server refused the message.
--
-- Atomic: Redis runs one script at a time. It may be sent at any time and again, so it needs no
-- not-after: after the next call of the sequence, which begins when this one is answered, it does
-- nothing. If the semaphore is gone, or is something else by now, there is nothing to give back to.
-- The first write is PEXPIRE, which is allowed on a server that is out of memory, and after a
-- script's first write the others are too. If the server refuses INCRBY, the record is what it was,
-- and this can be sent again.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local record = redis.call('get', KEYS[3])
local last, known = string.match(record or '', '^(%d+) (-?%d+)$')
if tonumber(last or 0) > tonumber(ARGV[1]) then
  return {0, now}
end
redis.call('pexpire', KEYS[3], ARGV[2])
redis.call('set', KEYS[3], ARGV[1] .. ' 0', 'px', ARGV[2])
local value = redis.pcall('get', KEYS[1])
local is_number = type(value) == 'string' and string.match(value, '^-?%d+$')
if last ~= ARGV[1] or known == '0' or not is_number then
  return {0, now}
end
local left = redis.pcall('incrby', KEYS[1], known)
if type(left) == 'table' then
  redis.call('set', KEYS[3], record or '', 'px', ARGV[2])
  return redis.error_reply("ERR 'incrby': " .. left.err)
end
local told = left > 0 and redis.pcall(ARGV[3], KEYS[2], left)
return type(told) == 'table' and {'UNTOLD', told.err, {1, now}} or {1, now}
