-- Undoes the acquire of a request, or makes sure that no copy of it takes anything.
--
-- KEYS[1]  the semaphore
-- KEYS[2]  its channel
-- KEYS[3]  the request: how many it took, 0 undone
-- ARGV[1]  how long to remember the request, in ms
-- ARGV[2]  the command that publishes
--
-- Answers {1, now}: it had taken them, and they are back. {0, now}: it had not, or that was undone before. `now` is the
-- server's clock in ms.
--
-- Atomic: Redis runs one script at a time. It may be sent at any time and again, so it needs no not-after. If the
-- semaphore is gone, or is something else by now, there is nothing to give back to. The first write is DEL, which is
-- allowed on a server that is out of memory, and after a script's first write the others are too.
local answer = 0
local known = redis.call('get', KEYS[3])
redis.call('del', KEYS[3])
redis.call('set', KEYS[3], 0, 'px', ARGV[1])
if known and known ~= '0' and redis.call('exists', KEYS[1]) == 1 then
  local left = redis.pcall('incrby', KEYS[1], known)
  if type(left) == 'number' then
    answer = 1
    if left > 0 then
      redis.call(ARGV[2], KEYS[2], left)
    end
  end
end
local time = redis.call('time')
return {answer, time[1] * 1000 + math.floor(time[2] / 1000)}
