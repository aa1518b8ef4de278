--!df flags=allow-undeclared-keys
-- Releases a reader, whatever its count. If no other reader is alive, the lock is free and the
-- waiters are woken. A release by another owner changes nothing. The levels of a reader without a
-- field are removed too.
--
-- KEYS[1]  the lock
-- KEYS[2]  its channel, among the keys so that this is refused while the slot is on its way to
--          another node: levels
--          may be there that are not here, and would be taken for over
-- ARGV[1]  owner
-- ARGV[2]  message
-- ARGV[3]  the command that publishes
-- ARGV[4]  at how many fields to look
--
-- Answers {1, now}: released. {0, now}: there is no such key. {-1, now}: the owner is not among its
-- readers. `now` is the server's clock in ms: an owner whose acquire may still be on its way
-- releases until `now` is past that acquire's not-after. {'UNTOLD', why, {1, now}}: released, but
-- the server refused what follows: the message, or to look at the other readers.
--
-- Atomic: Redis runs one script at a time. It needs no not-after: an owner is never used again. The
-- first write is DEL, which a server allows that is out of memory, of a level that should not be
-- there: a user that may not call DEL leaves everything as it is. Other readers keep the
-- lock for as long as the longest of their levels lasts. A reader without a level is dead: its
-- field is removed. Among many readers only a few are checked, chosen at random, so a release costs
-- the same among a thousand. If one of these is alive, the lock's time to live is not shortened. If
-- none is, all are checked, and the dead ones are removed. A writer has its own time to live.
local answer, told, why = 0, true, nil
local tag = KEYS[1]
if not string.find(tag, '{', 1, true) then
  tag = '{' .. tag .. '}'
end
local own = tag .. ':' .. ARGV[1] .. ':rwlock_timeout:'
-- A key of another type is no lock. What the server refuses this user is an error.
local count = redis.pcall('hget', KEYS[1], ARGV[1])
if type(count) == 'table' and not string.find(count.err, 'WRONGTYPE', 1, true) then
  redis.call('hget', KEYS[1], ARGV[1])
end
if type(count) == 'string' then
  answer = 1
  local others = redis.call('hlen', KEYS[1]) - 1
  redis.call('del', own .. ((tonumber(count) or 0) + 1))
  redis.call('hdel', KEYS[1], ARGV[1])
  for i = 1, tonumber(count) or 0 do
    redis.call('del', own .. i)
  end
  told, why = pcall(function()
    local left = others > 1
    if left and redis.call('hget', KEYS[1], 'mode') == 'read' then
      local function longest_of(fields)
        local longest = 0
        for at = 1, #fields, 2 do
          local levels = tonumber(fields[at + 1])
          local lasts = 0
          for i = 1, levels or 0 do
            local level = tag .. ':' .. fields[at] .. ':rwlock_timeout:' .. i
            lasts = math.max(lasts, redis.call('pttl', level))
          end
          if levels and lasts == 0 then
            redis.call('hdel', KEYS[1], fields[at])
          end
          longest = math.max(longest, lasts)
        end
        return longest
      end
      local longest = longest_of(redis.call('hrandfield', KEYS[1], ARGV[4], 'withvalues'))
      local all = others <= tonumber(ARGV[4])
      if longest == 0 and not all then
        longest = longest_of(redis.call('hgetall', KEYS[1]))
        all = true
      end
      left = longest > 0
      -- Redisson's acquires let it creep on a little.
      local lasts = redis.call('pttl', KEYS[1])
      if left and (lasts < longest or (all and lasts > longest + 50)) then
        redis.call('pexpire', KEYS[1], longest)
      end
    end
    if not left then
      redis.call('del', KEYS[1])
      redis.call(ARGV[3], KEYS[2], ARGV[2])
    end
  end)
else
  -- Something else removed the field and left the levels.
  local i = 1
  while redis.call('del', own .. i) == 1 do
    i = i + 1
  end
  if redis.call('exists', KEYS[1]) == 1 then
    answer = -1
  end
end
local time = redis.call('time')
local answers = {answer, time[1] * 1000 + math.floor(time[2] / 1000)}
return told and answers or {'UNTOLD', tostring(why), answers}
