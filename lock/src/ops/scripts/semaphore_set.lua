-- Creates a semaphore, unless there is one.
--
-- KEYS[1]  the semaphore: a number of permits
-- KEYS[2]  its channel
-- KEYS[3]  the request sequence: its last call, and what was answered
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  permits
-- ARGV[3]  its time to live in ms, 0 for none
-- ARGV[4]  the call's number in its sequence
-- ARGV[5]  how long to remember the call, in ms
-- ARGV[6]  the command that publishes
--
-- Answers 1: created. 0: there is one. {'LATE', now}: arrived too late, or after the next call of
-- its sequence, and did nothing. {'UNTOLD', why, 1}: created, but the server refused the message. A
-- key that is no number is an error, and it stays.
--
-- Atomic: Redis runs one script at a time. The answer is remembered as that of the sequence's last
-- call, so a copy changes nothing.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last, known = string.match(redis.call('get', KEYS[3]) or '', '^(%d+) (-?%d+)$')
if now > tonumber(ARGV[1]) or tonumber(last or 0) > tonumber(ARGV[4]) then
  return {'LATE', now}
end
if last == ARGV[4] then
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
  if tonumber(ARGV[3]) > 0 then
    redis.call('set', KEYS[1], ARGV[2], 'px', ARGV[3])
  else
    redis.call('set', KEYS[1], ARGV[2])
  end
  told = tonumber(ARGV[2]) > 0 and redis.pcall(ARGV[6], KEYS[2], ARGV[2])
  answer = 1
end
redis.call('set', KEYS[3], ARGV[4] .. ' ' .. answer, 'px', ARGV[5])
return type(told) == 'table' and {'UNTOLD', told.err, answer} or answer
