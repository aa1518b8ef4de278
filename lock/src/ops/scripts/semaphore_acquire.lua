-- Takes permits, if there are enough.
--
-- KEYS[1]  the semaphore: a number of permits
-- KEYS[2]  the request sequence: its last call, and how many it took, 0 undone
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  permits
-- ARGV[3]  the call's number in its sequence
-- ARGV[4]  how long to remember the call, in ms
--
-- Answers {1, left}: taken. {0, left}: refused, as fewer are left or the call was undone. {'LATE',
-- now}: arrived too late, or after the next call of its sequence, and did nothing. A key that is no
-- number is an error, and it stays.
--
-- Atomic: Redis runs one script at a time. What was taken is remembered as that of the sequence's
-- last call, so a copy takes nothing. It only remembers it anew: replicas are asked for what was
-- written, and what the first copy wrote may not have reached them. A refusal is not remembered:
-- the client undoes a refused call of which a copy may come.
-- The answer is remembered first. If the server then refuses the change, the record is what it was.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local record = redis.call('get', KEYS[2])
local last, known = string.match(record or '', '^(%d+) (-?%d+)$')
if now > tonumber(ARGV[1]) or tonumber(last or 0) > tonumber(ARGV[3]) then
  return {'LATE', now}
end
-- A long text is no number, and is not read.
local is_long = redis.call('strlen', KEYS[1]) > 20
local value = is_long and 'long' or redis.call('get', KEYS[1]) or '0'
if not string.match(value, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
local left = tonumber(value)
if last == ARGV[3] and known == '0' then
  return {0, left}
elseif last == ARGV[3] then
  redis.call('pexpire', KEYS[2], ARGV[4])
  return {1, left}
end
if left < tonumber(ARGV[2]) then
  return {0, left}
end
redis.call('set', KEYS[2], ARGV[3] .. ' ' .. ARGV[2], 'px', ARGV[4])
local less = redis.pcall('decrby', KEYS[1], ARGV[2])
if type(less) == 'table' then
  redis.call('set', KEYS[2], record or '', 'px', ARGV[4])
  return redis.error_reply("ERR 'decrby': " .. less.err)
end
return {1, less}
