-- Takes permits, each with an id and a lease, if there are enough.
--
-- KEYS[1]  the semaphore: a number of permits that are free
-- KEYS[2]  the leases: ids and when they end
-- KEYS[3]  the channel
-- KEYS[i]  what is remembered of id i, from 4 on: exists if it was released
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  lease in ms, -1 for none
-- ARGV[3]  the command that publishes
-- ARGV[i]  id i, from 4 on
--
-- Answers {1, left, -1}: taken. {0, left, wait}: refused; in `wait` ms the next lease ends, -1 for
-- never. {'LATE', now}: arrived too late, did nothing. A key of another type is an error, and it
-- stays.
--
-- Atomic: Redis runs one script at a time. Permits whose leases have ended are free again first. An
-- id that is there, or was released, means that this is a copy: it takes nothing, and its leases
-- begin anew, as the caller counts from the copy that was answered. They are written also where
-- they are long enough: replicas are asked for what was written, and what the first copy wrote may
-- not have reached them. The first write of a copy is ZREM of what is not there: ZREM is allowed on
-- a server that is out of memory, ZADD is not, and after a script's first write all are. If the
-- server refuses a write, no permit is taken.
local never = '922337203685477'
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
-- A long text is no number, and is not read.
local is_long = redis.call('strlen', KEYS[1]) > 20
local value = is_long and 'long' or redis.call('get', KEYS[1])
if value and not string.match(value, '^-?%d+$') then
  return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
end
local left = tonumber(value or '0')
local ends = never
if ARGV[2] ~= '-1' then
  ends = string.format('%.0f', now + tonumber(ARGV[2]))
end
local held, copy = 0, false
for i = 4, #KEYS do
  local score = redis.call('zscore', KEYS[2], ARGV[i])
  if score then
    local longer = math.max(tonumber(score), tonumber(ends))
    -- Twice, as what is written again as it was is not written.
    redis.call('zrem', KEYS[2], '')
    redis.call('zadd', KEYS[2], 'XX', string.format('%.0f', longer - 1), ARGV[i])
    redis.call('zadd', KEYS[2], 'XX', string.format('%.0f', longer), ARGV[i])
    held, copy = 1, true
  elseif redis.call('exists', KEYS[i]) == 1 then
    copy = true
  end
end
if copy then
  return {held, left, -1}
end
local freed = redis.call('zcount', KEYS[2], 0, now)
if freed > 0 then
  -- Nothing is in this range. A server that refuses to remove does so before permits are added.
  redis.call('zremrangebyscore', KEYS[2], 1, 0)
  if value then
    left = redis.call('incrby', KEYS[1], freed)
  end
  redis.call('zremrangebyscore', KEYS[2], 0, now)
end
local wanted, taken, wait = #KEYS - 3, 0, -1
if value and left >= wanted then
  local lives = redis.call('pttl', KEYS[1])
  left = redis.call('decrby', KEYS[1], wanted)
  local done, command
  for i = 4, #KEYS do
    done, command = redis.pcall('zadd', KEYS[2], ends, ARGV[i]), 'zadd'
  end
  if lives > 0 and type(done) ~= 'table' then
    done, command = redis.pcall('pexpire', KEYS[2], lives), 'pexpire'
  end
  if type(done) == 'table' then
    redis.call('decrby', KEYS[1], -wanted)
    for i = 4, #KEYS do
      redis.pcall('zrem', KEYS[2], ARGV[i])
    end
    return redis.error_reply("ERR '" .. command .. "': " .. done.err)
  end
  taken = 1
else
  local first = redis.call('zrange', KEYS[2], 0, 0, 'withscores')
  if first[2] and first[2] ~= never then
    wait = tonumber(first[2]) - now
  end
end
local told = freed > 0 and left > 0 and redis.pcall(ARGV[3], KEYS[3], left)
local answers = {taken, left, wait}
return type(told) == 'table' and {'UNTOLD', told.err, answers} or answers
