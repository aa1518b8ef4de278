-- Runs a command if a fencing token is not stale.
--
-- KEYS[1]  the fence: the newest token of the resource
-- KEYS[2]  the resource, which the command writes
-- ARGV[1]  the token
-- ARGV[2]  the command's name, and then its arguments
--
-- Answers {nil, reply}, or {newest, nil}: a newer token was seen, and nothing was changed. An error of
-- the command is an error, and leaves the fence as it was.
--
-- Atomic: Redis runs one script at a time. Tokens are compared as texts: a token may have more digits
-- than a number of Lua keeps. Of two numbers without leading zeros the longer one is larger.
local token, newest = ARGV[1], redis.call('get', KEYS[1])
if newest and not string.match(newest, '^%d+$') then
  return redis.error_reply('ERR the key of the fence holds no token')
end
if newest and (#token < #newest or (#token == #newest and token < newest)) then
  return {newest, false}
end
-- The limit of Lua's stack.
if #ARGV > 7000 then
  return redis.error_reply('ERR the command has too many arguments for a script')
end
-- The token first: a user that may not write the fence writes nothing. SET also ends a time to live.
redis.call('set', KEYS[1], token)
local reply = redis.pcall(unpack(ARGV, 2))
if type(reply) == 'table' and reply.err then
  -- Zero is older than every token, for a user that may not delete.
  if newest then
    redis.call('set', KEYS[1], newest)
  elseif redis.pcall('del', KEYS[1]) ~= 1 then
    redis.call('set', KEYS[1], '0')
  end
  return reply
end
return {false, reply}
