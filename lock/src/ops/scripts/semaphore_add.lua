-- Adds permits, or removes some, which may leave fewer than none.
--
-- KEYS[1]  the semaphore: a number of permits
-- KEYS[2]  its channel
-- KEYS[3]  the request sequence: its last call, and what was answered
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  permits
-- ARGV[3]  1 if only a semaphore that exists may be changed
-- ARGV[4]  the call's number in its sequence
-- ARGV[5]  how long to remember the call, in ms
-- ARGV[6]  the command that publishes
--
-- Answers {1, now}: done. {0, now}: there is no semaphore. {-1, now}: its number would not fit into
-- 32 bits, with which Java counts. `now` is the server's clock in ms. {'LATE', now}: arrived too
-- late, or after the next call of its sequence, and did nothing. {'UNTOLD', why, {1, now}}: done,
-- but the server refused the message. A key that is no number is an error, and it stays.
--
-- Atomic: Redis runs one script at a time. The answer is remembered as that of the sequence's last
-- call, so a copy adds nothing. A time to live stays. The first write is PEXPIRE: it is allowed on
-- a server that is out of memory, INCRBY is not, and after a script's first write all are.
-- The answer is remembered first. If the server then refuses the change, the record is what it was.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local record = redis.call('get', KEYS[3])
local last, known = string.match(record or '', '^(%d+) (-?%d+)$')
if now > tonumber(ARGV[1]) or tonumber(last or 0) > tonumber(ARGV[4]) then
  return {'LATE', now}
end
if last == ARGV[4] then
  return {tonumber(known), now}
end
-- A long text is no number, and is not read.
local is_long = redis.call('strlen', KEYS[1]) > 20
local value = is_long and 'long' or redis.call('get', KEYS[1])
if value and not string.match(value, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
redis.call('pexpire', KEYS[3], ARGV[5])
local answer = 1
local sum = tonumber(value or '0') + tonumber(ARGV[2])
if not value and ARGV[3] == '1' then
  answer = 0
elseif sum > 2147483647 or sum < -2147483648 then
  answer = -1
end
redis.call('set', KEYS[3], ARGV[4] .. ' ' .. answer, 'px', ARGV[5])
local told
if answer == 1 then
  local left = redis.pcall('incrby', KEYS[1], ARGV[2])
  if type(left) == 'table' then
    redis.call('set', KEYS[3], record or '', 'px', ARGV[5])
    return redis.error_reply("ERR 'incrby': " .. left.err)
  end
  told = left > 0 and tonumber(ARGV[2]) > 0 and redis.pcall(ARGV[6], KEYS[2], left)
end
return type(told) == 'table' and {'UNTOLD', told.err, {answer, now}} or {answer, now}
