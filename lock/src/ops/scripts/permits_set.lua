-- Sets how many permits there are in all, free and taken; makes the semaphore if there is none.
--
-- KEYS[1]  the semaphore: a number of permits that are free
-- KEYS[2]  the leases: ids and when they end
-- KEYS[3]  the channel
-- KEYS[4]  the request sequence: its last call, and what was answered
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  permits
-- ARGV[3]  the call's number in its sequence
-- ARGV[4]  how long to remember the call, in ms
-- ARGV[5]  the command that publishes
--
-- Answers 1: done. {'LATE', now}: arrived too late, or after the next call of its sequence, and did
-- nothing. A key of another type is an error, and it stays.
--
-- Atomic: Redis runs one script at a time. The answer is remembered as that of the sequence's last
-- call, so a copy does not undo what was set after it. If more are taken than there are to be, less
-- than none are free until enough have come back.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local record = redis.call('get', KEYS[4])
local last, known = string.match(record or '', '^(%d+) (-?%d+)$')
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
local ended = redis.call('zcount', KEYS[2], 0, now)
if ended > 0 then
  -- Nothing is in this range. A server that refuses to remove does so before the number is set.
  redis.call('zremrangebyscore', KEYS[2], 1, 0)
end
local left = tonumber(ARGV[2])
if value then
  left = left - (redis.call('zcard', KEYS[2]) - ended)
end
redis.call('set', KEYS[4], ARGV[3] .. ' 1', 'px', ARGV[4])
local sum = redis.pcall('incrby', KEYS[1], left - tonumber(value or '0'))
if type(sum) == 'table' then
  redis.call('set', KEYS[4], record or '', 'px', ARGV[4])
  return redis.error_reply("ERR 'incrby': " .. sum.err)
end
if ended > 0 then
  redis.call('zremrangebyscore', KEYS[2], 0, now)
end
local told = left > 0 and redis.pcall(ARGV[5], KEYS[3], left)
return type(told) == 'table' and {'UNTOLD', told.err, 1} or 1
