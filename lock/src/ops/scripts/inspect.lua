-- Reads all that can be known of a lock: of what kind it is, who holds it, and who waits.
--
-- KEYS[1]  the lock, or whatever has its name
-- KEYS[2]  the queue of a fair lock; this and what follows may be missing
-- KEYS[3]  the token of a fenced lock
-- KEYS[4]  the leases of permits
-- ARGV[i]  a channel on which waiters are woken
--
-- Answers {found, lives, owners, count, text, queue, fenced, leases, subscribers}. found: what
-- recognize says. lives: in ms, as PTTL says. owners: each with its hold count. count: how many
-- owners there are. text: a simple lock's owner or a number, else ''. queue: of owners. fenced,
-- leases: whether that key exists. subscribers: how many each channel has on this server, -1 if the
-- server does not say.
--
-- Atomic: Redis runs one script at a time. It changes nothing. Of another program's data only the
-- type is returned.
local found, held, count = recognize(KEYS[1])
local owners = type(held) == 'table' and held or {}
local text = type(held) == 'string' and held or ''
local queue = {}
if KEYS[2] and redis.call('type', KEYS[2]).ok == 'list' then
  -- One after the other: an item that is no owner may be large, and is the last that is read.
  for place = 0, MOST - 1 do
    local waiter = redis.call('lindex', KEYS[2], place)
    if not waiter or #waiter > LONGEST then
      break
    end
    queue[place + 1] = waiter
  end
end
local subscribers = {}
for i, channel in ipairs(ARGV) do
  -- A server before 7.0 has no sharded channels; a user may be denied both.
  local all = redis.pcall('pubsub', 'numsub', channel)
  local sharded = redis.pcall('pubsub', 'shardnumsub', channel)
  if all['err'] and sharded['err'] then
    subscribers[i] = -1
  else
    subscribers[i] = (all[2] or 0) + (sharded[2] or 0)
  end
end
local lives = redis.call('pttl', KEYS[1])
local fenced = KEYS[3] and redis.call('exists', KEYS[3]) or 0
local leases = KEYS[4] and redis.call('exists', KEYS[4]) or 0
return {found, lives, owners, count or 0, text, queue, fenced, leases, subscribers}
