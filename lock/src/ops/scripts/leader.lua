-- Says who holds a fenced lock, and with which token.
--
-- KEYS[1]  the lock
-- KEYS[2]  the counter of tokens
--
-- Answers {owner, token}, texts, or nil: nobody holds it. The last token is the holder's. A key
-- that holds something else than such a lock is an error that says what.
--
-- Atomic: Redis runs one script at a time. It changes nothing.
local found, owners = recognize(KEYS[1])
if found == 'none' then
  return nil
elseif found ~= 'lock' then
  return refusal(found)
end
return {owners[1], redis.call('get', KEYS[2]) or '0'}
