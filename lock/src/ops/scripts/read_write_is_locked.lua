-- Whether the lock is held in a mode.
--
-- KEYS[1]  the lock
-- ARGV[1]  read or write
--
-- Answers 1 or 0. A writer that reads too has a second field beside the mode.
local mode = redis.call('hget', KEYS[1], 'mode')
if mode == ARGV[1] or (mode == 'write' and redis.call('hlen', KEYS[1]) > 2) then
  return 1
end
return 0
