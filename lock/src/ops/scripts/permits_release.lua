-- Releases permits by their ids: all of them, or none if one is missing.
--
-- KEYS[1]  the semaphore: a number of permits that are free
-- KEYS[2]  the leases: ids and when they end
-- KEYS[3]  the channel
-- KEYS[i]  what is remembered of id i, from 4 on
-- ARGV[1]  how long to remember the release, in ms, 0 for not at all
-- ARGV[2]  the command that publishes
-- ARGV[3]  the name of this request
-- ARGV[i]  id i, from 4 on
--
-- Answers {1, now}: released. {2, now}: released, but the lease of one had ended before. {0, now}:
-- one is missing, and none was released. `now` is the server's clock in ms.
-- {'UNTOLD', why, {.., now}}: released, but the server refused the message.
--
-- Atomic: Redis runs one script at a time. An id is never used again, so it needs no not-after.
-- What is remembered tells a copy of this request what was answered, and keeps a copy of the
-- acquire that is still on its way from taking anything. If the number is gone, there is nothing to
-- give back to. The first write is ZREM or DEL, which are allowed on a server that is out of
-- memory, and after a script's first write the others are too. If the server refuses a write,
-- nothing is given back, and this can be sent again.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.call('get', KEYS[4])
local prefix = ARGV[3] .. ' '
if known and string.sub(known, 1, #prefix) == prefix then
  return {tonumber(string.sub(known, #prefix + 1)), now}
end
-- A long text is no number, and is not read.
local is_long = redis.call('strlen', KEYS[1]) > 20
local value = is_long and 'long' or redis.call('get', KEYS[1])
if value and not string.match(value, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
local answer = 1
for i = 4, #KEYS do
  local score = redis.call('zscore', KEYS[2], ARGV[i])
  if not score then
    answer = 0
    break
  elseif tonumber(score) <= now then
    answer = 2
  end
end
if answer > 0 then
  -- These change nothing. A server that refuses them does so before anything is given back.
  redis.call('zrem', KEYS[2], '')
  if value then
    redis.call('incrby', KEYS[1], 0)
  end
end
if tonumber(ARGV[1]) > 0 then
  for i = 4, #KEYS do
    if answer > 0 or redis.call('exists', KEYS[i]) == 0 then
      redis.call('del', KEYS[i])
      redis.call('set', KEYS[i], prefix .. answer, 'px', ARGV[1])
    end
  end
end
local told
if answer > 0 then
  local removed = 0
  for i = 4, #KEYS do
    removed = removed + redis.call('zrem', KEYS[2], ARGV[i])
  end
  if value then
    local left = redis.call('incrby', KEYS[1], removed)
    told = left > 0 and redis.pcall(ARGV[2], KEYS[3], left)
  end
end
return type(told) == 'table' and {'UNTOLD', told.err, {answer, now}} or {answer, now}
