-- Some of a server's keys that match a pattern.
--
-- ARGV[1]  where the last page ended; 0 at first
-- ARGV[2]  the pattern, as of SCAN
-- ARGV[3]  about how many keys to look at
-- ARGV[4]  how long a name may be
-- ARGV[5]  how long all names of a page may be together
--
-- Answers {cursor, keys}: where the next page begins, 0 if this was the last; and the keys, without
-- those that cannot be names.
--
-- Atomic: Redis runs one script at a time. It changes nothing. A page that is too large is read
-- again with fewer keys, so that a reply is bounded.
local count = tonumber(ARGV[3])
while true do
  local page = redis.call('scan', ARGV[1], 'MATCH', ARGV[2], 'COUNT', count)
  local keys, size = {}, 0
  for _, key in ipairs(page[2]) do
    if #key > 0 and #key <= tonumber(ARGV[4]) then
      keys[#keys + 1] = key
      size = size + #key
    end
  end
  if size <= tonumber(ARGV[5]) or count == 1 then
    return {page[1], keys}
  end
  count = math.max(1, math.floor(count / 4))
end
