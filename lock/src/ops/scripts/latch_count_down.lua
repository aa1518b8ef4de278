-- Counts a latch down by one, and opens it at zero.
--
-- KEYS[1]  the latch: a number
-- KEYS[2]  the request sequence: its last call, and what was answered
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  the call's number in its sequence
-- ARGV[3]  how long to remember the call, in ms
-- ARGV[4]  the command that publishes
-- ARGV[5]  its channel
--
-- Answers 1: counted. 0: there was nothing to count. {'LATE', now}: arrived too late, or after the
-- next call of its sequence, and did nothing. {'UNTOLD', why, 1}: counted, but the server refused
-- the message. A key that is no number is an error, and it stays.
--
-- Atomic: Redis runs one script at a time. The answer is remembered as that of the sequence's last
-- call, so a copy counts nothing. The message 0 opens Redisson's gate. The channel is no key:
-- Redisson's name for it may be of another slot. The first write is PEXPIRE: it is allowed on a
-- server that is out of memory, DECR is not, and after a script's first write all are.
-- The answer is remembered first. If the server then refuses the change, the record is what it was.
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
-- A long text is no number, and is not read.
local is_long = redis.call('strlen', KEYS[1]) > 20
local value = is_long and 'long' or redis.call('get', KEYS[1])
if value and not string.match(value, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
redis.call('pexpire', KEYS[2], ARGV[3])
local answer = value and 1 or 0
redis.call('set', KEYS[2], ARGV[2] .. ' ' .. answer, 'px', ARGV[3])
if not value then
  return answer
end
local opens = tonumber(value) <= 1
local counted = opens and redis.pcall('del', KEYS[1]) or redis.pcall('decr', KEYS[1])
if type(counted) == 'table' then
  redis.call('set', KEYS[2], record or '', 'px', ARGV[3])
  return redis.error_reply("ERR '" .. (opens and 'del' or 'decr') .. "': " .. counted.err)
end
local told = opens and redis.pcall(ARGV[4], ARGV[5], '0')
return type(told) == 'table' and {'UNTOLD', told.err, answer} or answer
