-- Ends many holds, whatever their counts, and wakes the waiters of each. A hold of another owner
-- stays.
--
-- KEYS[i]          a lock
-- ARGV[1]          message
-- ARGV[2]          the command that publishes
-- ARGV[1 + 2 * i]  the owner of hold i
-- ARGV[2 + 2 * i]  the channel of lock i
--
-- Answers {1, now, {found, ..}}: for each, 1 ended, 0 there is no such key, -1 it is another
-- owner's, or not a lock. `now` is the server's clock in ms: an owner whose acquire may still be on
-- its way releases until `now` is past that acquire's not-after. {'UNTOLD', why, {..}}: the same,
-- but the server refused a message.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again. The
-- first write is DEL, which is allowed on a server that is out of memory. The channels are no keys,
-- as in the release of one hold.
local found, refused = {}, nil
for i, key in ipairs(KEYS) do
  -- A key of another type is no lock. What the server refuses this user is an error.
  local has = redis.pcall('hexists', key, ARGV[1 + 2 * i])
  if type(has) == 'table' and not string.find(has.err, 'WRONGTYPE', 1, true) then
    redis.call('hexists', key, ARGV[1 + 2 * i])
  end
  if has == 1 then
    redis.call('del', key)
    local receivers = redis.pcall(ARGV[2], ARGV[2 + 2 * i], ARGV[1])
    if type(receivers) == 'table' then
      refused = receivers.err
    end
    found[i] = 1
  elseif redis.call('exists', key) == 1 then
    found[i] = -1
  else
    found[i] = 0
  end
end
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if refused then
  return {'UNTOLD', refused, {1, now, found}}
end
return {1, now, found}
