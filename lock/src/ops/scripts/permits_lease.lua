-- Sets the lease of a permit.
--
-- KEYS[1]  the leases: ids and when they end
-- KEYS[2]  the request sequence: its last call, and what was answered
-- ARGV[1]  not after, by the server's clock, in ms
-- ARGV[2]  id
-- ARGV[3]  lease in ms, -1 for none
-- ARGV[4]  the call's number in its sequence
-- ARGV[5]  how long to remember the call, in ms
--
-- Answers 1: done. 0: no permit of that id is taken. {'LATE', now}: arrived too late, or after the
-- next call of its sequence, and did nothing. A key of another type is an error, and it stays.
--
-- Atomic: Redis runs one script at a time. The answer is remembered as that of the sequence's last
-- call, so a copy does not undo what was set after it. A permit whose lease has ended does not come
-- back. The first write is PEXPIRE: it is allowed on a server that is out of memory, ZADD is not,
-- and after a script's first write all are.
-- The answer is remembered first. If the server then refuses the change, the record is what it was.
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local record = redis.call('get', KEYS[2])
local last, known = string.match(record or '', '^(%d+) (-?%d+)$')
if now > tonumber(ARGV[1]) or tonumber(last or 0) > tonumber(ARGV[4]) then
  return {'LATE', now}
end
if last == ARGV[4] then
  return tonumber(known)
end
local score = redis.call('zscore', KEYS[1], ARGV[2])
redis.call('pexpire', KEYS[2], ARGV[5])
local answer = score and tonumber(score) > now and 1 or 0
redis.call('set', KEYS[2], ARGV[4] .. ' ' .. answer, 'px', ARGV[5])
if answer == 1 then
  local ends = '922337203685477'
  if ARGV[3] ~= '-1' then
    ends = string.format('%.0f', now + tonumber(ARGV[3]))
  end
  local leased = redis.pcall('zadd', KEYS[1], 'XX', ends, ARGV[2])
  if type(leased) == 'table' then
    redis.call('set', KEYS[2], record or '', 'px', ARGV[5])
    return redis.error_reply("ERR 'zadd': " .. leased.err)
  end
end
return answer
