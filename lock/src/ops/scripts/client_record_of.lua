-- Reads the record of a client.
--
-- KEYS[1]  the record
--
-- Answers {}: there is none. {label, process id, age, caches}: how long ago the client started, in ms,
-- and whether locks stay with the client between two uses, 1 or 0. An older client does not say.
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
return {label, tonumber(process), now - tonumber(started), caches == '1' and 1 or 0}
