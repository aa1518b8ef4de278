-- Takes a free lock for an owner, or takes it again for the same owner, as a request sent twice
-- does.
--
-- KEYS[1]  the lock
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  owner
-- ARGV[3]  lease, in ms
-- ARGV[4]  there if a refusal is to name the owner
--
-- Answers nil: taken. A number: busy, time to live in ms, -1 for none. {number, owner}: the same, with
-- one of the owners, or {number} if this user may not look. {'LATE', now}: arrived too late, did
-- nothing. A key that is no lock is an error, and it stays.
--
-- Atomic: Redis runs one script at a time. The count is written, never incremented. The time to
-- live never shrinks. If the server refuses PEXPIRE, nothing is left.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now > tonumber(ARGV[1]) then
  return {'LATE', now}
end
local lasts = redis.call('pttl', KEYS[1])
if lasts == -2 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hset', KEYS[1], ARGV[2], 1)
  local limited = redis.pcall('pexpire', KEYS[1], math.max(lasts, tonumber(ARGV[3])))
  if limited ~= 1 then
    if lasts == -2 then
      redis.pcall('del', KEYS[1])
    end
    return redis.error_reply("ERR 'pexpire': " .. limited.err)
  end
  return nil
end
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
if ARGV[4] then
  return {lasts, fields[1]}
end
return lasts
