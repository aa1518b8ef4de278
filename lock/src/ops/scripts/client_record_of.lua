-- Reads the record of a client.
--
-- KEYS[1]  the record
--
-- Answers {}: there is none. {label, process id, age, caches, waits, written}: how long ago the client
-- started, in ms; whether locks stay with the client between two uses, 1 or 0; which of its threads have
-- waited for long, or an empty text; when the record was written, in ms. An older client does not say
-- the last three.
--
-- Atomic: Redis runs one script at a time. It changes nothing.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local label = redis.call('hget', KEYS[1], 'label')
local process = redis.call('hget', KEYS[1], 'process')
local started = redis.call('hget', KEYS[1], 'started')
if not (label and process and started) then
  return {}
end
local caches = redis.call('hget', KEYS[1], 'caches')
local waits = redis.call('hget', KEYS[1], 'waits') or ''
local written = tonumber(redis.call('hget', KEYS[1], 'written') or '0') or 0
return {label, tonumber(process), now - tonumber(started), caches == '1' and 1 or 0, waits, written}
