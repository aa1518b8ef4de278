-- Reads the record of a client.
--
-- KEYS[1]  the record
--
-- Answers {}: there is none. {label, process id, age}: how long ago the client started, in ms.
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
return {label, tonumber(process), now - tonumber(started)}
