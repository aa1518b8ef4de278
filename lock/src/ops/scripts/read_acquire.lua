--!df flags=allow-undeclared-keys
-- Lets a reader in, or lets the same one in again, as a request sent twice does.
--
-- KEYS[1]  the lock
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  owner
-- ARGV[3]  lease, in ms
-- ARGV[4]  the field of the same holder's write hold, under which it may read; empty if there is
--          none
--
-- Answers nil: taken. A number: busy, time to live in ms, -1 for none. {'LATE', now}: arrived too
-- late, did nothing. A key that is no lock is an error, and it stays.
--
-- Atomic: Redis runs one script at a time. Beside the hash stands one key for each level of
-- nesting, with the time to live of that level: Redisson's read unlock gives the hash the longest
-- of them. A hash without a mode is a lock of another kind, and busy. A time to live never shrinks,
-- and one that is long enough is not touched: written again a thousand times as what is left of it,
-- it would creep on. The level, which has an end, is written first. If the server refuses another
-- write, nothing else is left.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local mode = redis.call('hget', KEYS[1], 'mode')
local lasts = redis.call('pttl', KEYS[1])
local open = mode == 'read' or lasts == -2
if mode == 'write' then
  open = redis.call('hexists', KEYS[1], ARGV[2]) == 1
    or (ARGV[4] ~= '' and redis.call('hexists', KEYS[1], ARGV[4]) == 1)
end
-- The time to live of what is no lock must not be set either.
if not open or lasts == -1 then
  -- What cannot be a lock is not waited for. The values of a lock are counts, but for its mode.
  -- The fields of a lock without an end begin with an owner, a UUID and a number; other clients
  -- may have other owners, and their locks end. A few fields are looked at, chosen at random,
  -- however many there are. For a user that may not look, everything is a lock.
  local fields = redis.pcall('hrandfield', KEYS[1], 4, 'withvalues')
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    local is_owner = string.sub(field, 9, 9) == '-' and string.sub(field, 37, 37) == ':'
      and string.match(field, '^%x+%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x+:%d+')
    local is_lock = (is_owner or lasts ~= -1) and string.match(value, '^%d+$')
    if field == 'mode' then
      is_lock = value == 'read' or value == 'write'
    end
    if not is_lock then
      return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')
    end
  end
end
if not open then
  return lasts
end
local lease = tonumber(ARGV[3])
local tag = KEYS[1]
if not string.find(tag, '{', 1, true) then
  tag = '{' .. tag .. '}'
end
local level = tag .. ':' .. ARGV[2] .. ':rwlock_timeout:1'
-- Before anything is written: while the slot is on its way to another node, this is refused.
local level_lasts = redis.call('pttl', level)
if level_lasts < lease then
  redis.call('set', level, 1, 'px', lease)
end
-- Written also where it is what it was: replicas are asked for what was written, and a copy may
-- have nothing else to write while what the first one wrote has not reached them.
local is_new = redis.call('hexists', KEYS[1], ARGV[2]) == 0
if is_new then
  redis.call('hset', KEYS[1], 'mode', mode or 'read', ARGV[2], 1)
else
  redis.call('hset', KEYS[1], 'mode', mode)
end
local limited = lasts >= lease or redis.pcall('pexpire', KEYS[1], lease)
if type(limited) == 'table' then
  if lasts == -2 then
    redis.pcall('del', KEYS[1])
  elseif is_new then
    redis.pcall('hdel', KEYS[1], ARGV[2])
  end
  return redis.error_reply("ERR 'pexpire': " .. limited.err)
end
return nil
