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
-- `receivers` are the subscribers that the message has reached on this server.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again. The
-- first write is DEL, which is allowed on a server that is out of memory. A key of another type is
-- not ours either. The channel is no key: what names two keys, of which one is never there, is
-- refused while their slot is on its way to another node. It is of the lock's slot, so a user that
-- may run this may publish there.
local answer, receivers = 0, nil
if redis.pcall('hexists', KEYS[1], ARGV[1]) == 1 then
  redis.call('del', KEYS[1])
  if ARGV[4] then
    receivers = redis.call(ARGV[3], ARGV[4], ARGV[2])
  end
  answer = 1
elseif redis.call('exists', KEYS[1]) == 1 then
  answer = -1
end
local time = redis.call('time')
return {answer, time[1] * 1000 + math.floor(time[2] / 1000), receivers}
