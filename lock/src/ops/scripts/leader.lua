-- Says who holds a fenced lock, and with which token.
--
-- KEYS[1]  the lock
-- KEYS[2]  the counter of tokens
--
-- Answers {owner, token}, texts, or nil: nobody holds it. The last token is the holder's.
--
-- Atomic: Redis runs one script at a time. It changes nothing.
local owner = redis.call('hgetall', KEYS[1])[1]
if not owner then
  return nil
end
return {owner, redis.call('get', KEYS[2]) or '0'}
