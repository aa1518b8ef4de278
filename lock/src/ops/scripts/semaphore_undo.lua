-- Undoes an acquire or a drain, or makes sure that no copy of it takes anything.
--
-- KEYS[1]  the semaphore
-- KEYS[2]  its channel
-- KEYS[3]  the request sequence: its last call, and how many it took, 0 undone
-- ARGV[1]  the call's number in its sequence
-- ARGV[2]  how long to remember the call, in ms
-- ARGV[3]  the command that publishes
--
-- Answers {1, now}: it had taken them, and they are back. {0, now}: it had not, or that was undone
-- before. `now` is the server's clock in ms.
--
-- Atomic: Redis runs one script at a time. It may be sent at any time and again, so it needs no
-- not-after: after the next call of the sequence, which begins when this one is answered, it does
-- nothing. If the semaphore is gone, or is something else by now, there is nothing to give back to.
-- The first write is PEXPIRE, which is allowed on a server that is out of memory, and after a
-- script's first write the others are too.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last, known = string.match(redis.call('get', KEYS[3]) or '', '^(%d+) (-?%d+)$')
if tonumber(last or 0) > tonumber(ARGV[1]) then
  return {0, now}
end
redis.call('pexpire', KEYS[3], ARGV[2])
redis.call('set', KEYS[3], ARGV[1] .. ' 0', 'px', ARGV[2])
local answer = 0
if last == ARGV[1] and known ~= '0' and redis.call('exists', KEYS[1]) == 1 then
  local left = redis.pcall('incrby', KEYS[1], known)
  if type(left) == 'number' then
    answer = 1
    if left > 0 then
      redis.call(ARGV[3], KEYS[2], left)
    end
  end
end
return {answer, now}
