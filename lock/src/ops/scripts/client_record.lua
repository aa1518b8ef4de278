-- Writes what a client says of itself, for those who ask who holds a lock.
--
-- KEYS[1]  the client's record
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  label
-- ARGV[3]  process id
-- ARGV[4]  how long ago the client started, in ms
-- ARGV[5]  how long the record lives, in ms; 0 removes it
-- ARGV[6]  1 if locks stay with the client between two uses
-- ARGV[7]  and so on: more fields, each followed by its value
--
-- Answers when it was written, by the server's clock, in ms. {'LATE', now}: arrived too late, did
-- nothing.
--
-- Atomic: Redis runs one script at a time. Sent twice, it writes the same, except that the start is
-- later by the time between both. If the server refuses PEXPIRE, nothing is left.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local started = string.format('%.0f', now - tonumber(ARGV[4]))
-- A field of a leader that leads no more, or of waits that have ended, goes with the old record.
if redis.call('hlen', KEYS[1]) > 5 then
  redis.call('del', KEYS[1])
end
redis.call('hset', KEYS[1], 'label', ARGV[2], 'process', ARGV[3], 'started', started, 'caches', ARGV[6],
  'written', string.format('%.0f', now), unpack(ARGV, 7))
local limited = redis.pcall('pexpire', KEYS[1], ARGV[5])
if limited ~= 1 then
  redis.pcall('del', KEYS[1])
  return redis.error_reply("ERR 'pexpire': " .. limited.err)
end
return now
