-- Ends a hold, whatever its count, and wakes the waiters. A release by another owner changes
-- nothing.
--
-- KEYS[1]  the lock
-- ARGV[1]  owner
-- ARGV[2]  message
-- ARGV[3]  the command that publishes
-- ARGV[4]  its channel; none if its waiters poll
--
-- Answers {1, now, receivers}: ended; {1, now} if nothing was published. {0, now}: there is no such
-- key. {-1, now}: it is another owner's, or not a lock. `now` is the server's clock in ms: an owner
-- whose acquire may still be on its way releases until `now` is past that acquire's not-after.
-- `receivers` are the subscribers that the message has reached on this server. {'UNTOLD', why, {1,
-- now}}: ended, but the server refused the message.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again. The
-- first write is DEL, which is allowed on a server that is out of memory. A key of another type is
-- not ours either. The channel is no key: what names two keys, of which one is never there, is
-- refused while their slot is on its way to another node. It is of the lock's slot, so a user that
-- may run this may publish there.
local answer, receivers = 0, nil
-- A key of another type is no lock. What the server refuses this user is an error.
local has = redis.pcall('hexists', KEYS[1], ARGV[1])
if type(has) == 'table' and not string.find(has.err, 'WRONGTYPE', 1, true) then
  redis.call('hexists', KEYS[1], ARGV[1])
end
if has == 1 then
  redis.call('del', KEYS[1])
  if ARGV[4] then
    receivers = redis.pcall(ARGV[3], ARGV[4], ARGV[2])
  end
  answer = 1
elseif redis.call('exists', KEYS[1]) == 1 then
  answer = -1
end
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if type(receivers) == 'table' then
  return {'UNTOLD', receivers.err, {answer, now}}
end
return {answer, now, receivers}
