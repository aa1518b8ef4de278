-- Takes many free locks, each for an owner, or takes them again for the same owners, as a request
-- sent twice does.
--
-- KEYS[i]      a lock
-- ARGV[1]      not after, by the server's clock, in ms
-- ARGV[2]      lease, in ms
-- ARGV[3]      1: all or none. 0: those that are free
-- ARGV[3 + i]  the owner for lock i
--
-- Answers {i, left, ..}: the locks that other owners have, and their times to live in ms, -1 for
-- none. The others are taken; of all or none, the first busy lock is named and nothing is taken.
-- nil: all are busy, and it was not all or none. {'LATE', now}: arrived too late, did nothing. A key
-- that is no lock is an error, and then nothing is taken either.
--
-- Atomic: Redis runs one script at a time. Every key is looked at before the first is written. The
-- count is written, never incremented. The time to live never shrinks. If the server refuses
-- PEXPIRE, nothing is left.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local lease = tonumber(ARGV[2])
local busy, taken, times = {}, {}, {}
-- Mostly all are free, and one look shows that.
local are_some_there = redis.call('exists', unpack(KEYS)) > 0
for number, key in ipairs(KEYS) do
  local lasts = -2
  if are_some_there then
    lasts = redis.call('pttl', key)
  end
  local has = 1
  if lasts ~= -2 then
    -- A key of another type is no lock. What the server refuses this user is an error.
    has = redis.pcall('hexists', key, ARGV[3 + number])
    if type(has) == 'table' then
      if string.find(has.err, 'WRONGTYPE', 1, true) then
        return redis.error_reply('WRONGTYPE KEYS[' .. number .. '] holds the wrong kind of value')
      end
      redis.call('hexists', key, ARGV[3 + number])
    end
  end
  if has == 1 then
    taken[#taken + 1] = number
    times[#taken] = lasts
  else
    -- What cannot be a lock is not waited for. The values of a lock are counts, but for its mode.
    -- The fields of a lock without an end begin with an owner, a UUID and a number; other clients
    -- may have other owners, and their locks end. A few fields are looked at, chosen at random,
    -- however many there are. For a user that may not look, everything is a lock.
    local fields = redis.pcall('hrandfield', key, 4, 'withvalues')
    for i = 1, #fields, 2 do
      local field, value = fields[i], fields[i + 1]
      local is_owner = string.sub(field, 9, 9) == '-' and string.sub(field, 37, 37) == ':'
        and string.match(field, '^%x+%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x+:%d+')
      local is_lock = (is_owner or lasts ~= -1) and string.match(value, '^%d+$')
      if field == 'mode' then
        is_lock = value == 'read' or value == 'write'
      end
      if not is_lock then
        return redis.error_reply('WRONGTYPE KEYS[' .. number .. '] holds the wrong kind of value')
      end
    end
    busy[#busy + 1] = number
    busy[#busy + 1] = lasts
    if ARGV[3] == '1' then
      return busy
    end
  end
end
if #taken == 0 then
  return nil
end
for at, i in ipairs(taken) do
  -- Texts, as a number is made a text for each call.
  redis.call('hset', KEYS[i], ARGV[3 + i], '1')
  local lasts = ARGV[2]
  if times[at] > lease then
    lasts = times[at]
  end
  local limited = redis.pcall('pexpire', KEYS[i], lasts)
  if limited ~= 1 then
    for before = 1, at do
      if times[before] == -2 then
        redis.pcall('del', KEYS[taken[before]])
      end
    end
    return redis.error_reply("ERR 'pexpire': " .. limited.err)
  end
end
return busy
