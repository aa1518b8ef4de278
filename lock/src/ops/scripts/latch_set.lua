-- Sets a latch's count, unless it has one.
--
-- KEYS[1]  the latch: a number
-- KEYS[2]  the request sequence: its last call, and what was answered
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  count
-- ARGV[3]  the call's number in its sequence
-- ARGV[4]  how long to remember the call, in ms
-- ARGV[5]  the command that publishes
-- ARGV[6]  its channel
--
-- Answers 1: set. 0: it has a count. {'LATE', now}: arrived too late, or after the next call of its
-- sequence, and did nothing. {'UNTOLD', why, 1}: set, but the server refused the message. A key
-- that is no number is an error, and it stays.
--
-- Atomic: Redis runs one script at a time. The answer is remembered as that of the sequence's last
-- call, so a copy sets nothing. The message 1 closes Redisson's gate. The channel is no key:
-- Redisson's name for it may be of another slot.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last, known = string.match(redis.call('get', KEYS[2]) or '', '^(%d+) (-?%d+)$')
if now > tonumber(ARGV[1]) or tonumber(last or 0) > tonumber(ARGV[3]) then
  return {'LATE', now}
end
if last == ARGV[3] then
  return tonumber(known)
end
-- A long text is no number, and is not read.
local is_long = redis.call('strlen', KEYS[1]) > 20
local value = is_long and 'long' or redis.call('get', KEYS[1])
if value and not string.match(value, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
local answer, told = 0, nil
if not value then
  redis.call('set', KEYS[1], ARGV[2])
  told = redis.pcall(ARGV[5], ARGV[6], '1')
  answer = 1
end
redis.call('set', KEYS[2], ARGV[3] .. ' ' .. answer, 'px', ARGV[4])
return type(told) == 'table' and {'UNTOLD', told.err, answer} or answer
