-- Reads all that can be known of a lock: of what kind it is, who holds it, and who waits.
--
-- KEYS[1]  the lock, or whatever has its name
-- KEYS[2]  the queue of a fair lock
-- KEYS[3]  the token of a fenced lock
-- KEYS[4]  the leases of permits
-- ARGV[1]  the most owners to return
-- ARGV[i]  a channel on which waiters are woken, from 2 on
--
-- Answers {type, lives, mode, owners, count, text, queue, fenced, leases, subscribers}. lives: in
-- ms, as PTTL says. mode: of a read-write lock, else ''. owners: each with its hold count. count:
-- how many owners there are, -1 if it is not a hash of owners. text: an owner or a number, else ''.
-- queue: of owners. fenced, leases: whether that key exists. subscribers: how many each channel has
-- on this server, -1 if the server does not say.
--
-- Atomic: Redis runs one script at a time. It changes nothing. Of another program's data only the
-- type is returned.
local most = tonumber(ARGV[1])
local kind = redis.call('type', KEYS[1])['ok']
local lives = redis.call('pttl', KEYS[1])
local mode, owners, count, text = '', {}, -1, ''
local function is_owner(field)
  return string.match(field, '^[%w%-]+:%d+$') or string.match(field, '^[%w%-]+:%d+:write$')
end
if kind == 'hash' then
  count = redis.call('hlen', KEYS[1])
  mode = redis.call('hget', KEYS[1], 'mode') or ''
  if mode ~= '' then
    count = count - 1
  end
  local fields = redis.call('hrandfield', KEYS[1], most + 1, 'withvalues')
  for i = 1, #fields, 2 do
    if is_owner(fields[i]) then
      if #owners < 2 * most then
        owners[#owners + 1] = fields[i]
        owners[#owners + 1] = tonumber(fields[i + 1]) or 1
      end
    elseif fields[i] ~= 'mode' then
      count = -1
    end
  end
  if mode ~= '' and mode ~= 'read' and mode ~= 'write' or count == -1 then
    mode, owners, count = '', {}, -1
  end
elseif kind == 'string' then
  local value = redis.call('get', KEYS[1])
  if is_owner(value) or string.match(value, '^-?%d+$') then
    text = string.sub(value, 1, 128)
  end
end
local queue = {}
if redis.call('type', KEYS[2])['ok'] == 'list' then
  queue = redis.call('lrange', KEYS[2], 0, most - 1)
end
local subscribers = {}
for i = 2, #ARGV do
  -- A server before 7.0 has no sharded channels; a user may be denied both.
  local all = redis.pcall('pubsub', 'numsub', ARGV[i])
  local sharded = redis.pcall('pubsub', 'shardnumsub', ARGV[i])
  if all['err'] and sharded['err'] then
    subscribers[i - 1] = -1
  else
    subscribers[i - 1] = (all[2] or 0) + (sharded[2] or 0)
  end
end
local fenced, leases = redis.call('exists', KEYS[3]), redis.call('exists', KEYS[4])
return {kind, lives, mode, owners, count, text, queue, fenced, leases, subscribers}
