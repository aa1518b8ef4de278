-- Begins a run of a job's slot: counts the attempt and draws a fencing token, if the owner has the
-- slot's lock, no run of the slot has succeeded, and attempts are left.
--
-- KEYS[1]  the lock of the slot
-- KEYS[2]  the record of the slot: a hash
-- KEYS[3]  the job's counter of tokens
-- KEYS[4]  the slots that the job ran for last: a sorted set, by when their latest run began
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  owner
-- ARGV[3]  the most attempts
-- ARGV[4]  how long the record is kept, in ms
-- ARGV[5]  the host of the run
-- ARGV[6]  the slot
--
-- Answers {attempt, token}, texts: the run begins. 0: the owner does not have the lock. 1: the slot
-- has run. 2: no attempt is left. {'LATE', now}: arrived too late, did nothing.
--
-- Atomic: Redis runs one script at a time. For an owner that has begun already, as when a request
-- is sent twice, it answers the same again. A token is at least the server's clock in microseconds,
-- so that tokens grow also when the counter has expired. If the server refuses a write, no attempt
-- is counted, and nothing is left without an end. The field `counted` has the owners of the latest
-- attempts, each followed by a blank, so that run_give_back.lua takes an attempt back once, also if
-- another owner has begun since.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
-- A key of another type is no lock. What the server refuses this user is an error.
local has = redis.pcall('hexists', KEYS[1], ARGV[2])
if type(has) == 'table' and not string.find(has.err, 'WRONGTYPE', 1, true) then
  redis.call('hexists', KEYS[1], ARGV[2])
end
if has ~= 1 then
  return 0
end
if redis.call('hget', KEYS[2], 'state') == 'done' then
  return 1
end
local begun = redis.call('hget', KEYS[2], 'token')
if begun and redis.call('hget', KEYS[2], 'owner') == ARGV[2] then
  local answer = {redis.call('hget', KEYS[2], 'attempts'), begun}
  redis.call('pexpire', KEYS[2], ARGV[4])
  redis.call('pexpire', KEYS[3], ARGV[4])
  return answer
end
local attempts = tonumber(redis.call('hget', KEYS[2], 'attempts') or 0) or 0
if attempts >= tonumber(ARGV[3]) then
  return 2
end
-- Where there is no record yet, this only asks whether the server would refuse it.
redis.call('pexpire', KEYS[2], ARGV[4])
-- A slot is listed before its record is there: a list may name slots without a record. A longer one is
-- not listed, so that a reply with all of them is of a bounded size.
if #ARGV[6] <= 1024 then
  redis.call('zadd', KEYS[4], now, ARGV[6])
  redis.call('pexpire', KEYS[4], ARGV[4])
  for _, slot in ipairs(redis.call('zrange', KEYS[4], 0, -101)) do
    redis.call('zrem', KEYS[4], slot)
  end
end
-- A new counter is written together with its end.
local clock = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('get', KEYS[3]) or '0')
if last and last + 1 < clock then
  redis.call('set', KEYS[3], string.format('%.0f', clock), 'px', ARGV[4])
else
  redis.call('incr', KEYS[3])
  redis.call('pexpire', KEYS[3], ARGV[4])
end
local token = redis.call('get', KEYS[3])
local counted = ARGV[2] .. ' ' .. (redis.call('hget', KEYS[2], 'counted') or '')
redis.call('hset', KEYS[2], 'state', 'running', 'owner', ARGV[2], 'attempts', attempts + 1, 'token', token,
  'counted', string.sub(counted, 1, 1024), 'host', ARGV[5], 'started', now,
  'ended', '', 'exit', '')
redis.call('pexpire', KEYS[2], ARGV[4])
return {tostring(attempts + 1), token}
