-- Takes all permits that are left.
--
-- KEYS[1]  the semaphore: a number of permits
-- KEYS[2]  the request sequence: its last call, and how many it took, 0 undone
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  the call's number in its sequence
-- ARGV[3]  how long to remember the call, in ms
--
-- Answers how many there were, which may be less than none. {'LATE', now}: arrived too late, or
-- after the next call of its sequence, and did nothing. A key that is no number is an error, and it
-- stays.
--
-- Atomic: Redis runs one script at a time. The answer is remembered as that of the sequence's last
-- call, so a copy takes nothing and says the same. It remembers it anew, as semaphore_acquire.lua
-- does. A time to live stays.
-- The answer is remembered first. If the server then refuses the change, the record is what it was.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local record = redis.call('get', KEYS[2])
local last, known = string.match(record or '', '^(%d+) (-?%d+)$')
if now > tonumber(ARGV[1]) or tonumber(last or 0) > tonumber(ARGV[2]) then
  return {'LATE', now}
end
if last == ARGV[2] then
  redis.call('pexpire', KEYS[2], ARGV[3])
  return tonumber(known)
end
-- A long text is no number, and is not read.
local is_long = redis.call('strlen', KEYS[1]) > 20
local value = is_long and 'long' or redis.call('get', KEYS[1]) or '0'
if not string.match(value, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
local left = tonumber(value)
redis.call('set', KEYS[2], ARGV[2] .. ' ' .. value, 'px', ARGV[3])
if left ~= 0 then
  local none = redis.pcall('decrby', KEYS[1], value)
  if type(none) == 'table' then
    redis.call('set', KEYS[2], record or '', 'px', ARGV[3])
    return redis.error_reply("ERR 'decrby': " .. none.err)
  end
end
return left
