-- What a key holds. This part stands before each script that has to know; recognize.rs says the
-- same of a keyspace in memory.
--
-- A lock is a hash whose values are counts, apart from that of the field `mode`, which is `read` or
-- `write`. Its fields are owners, UUID:NUMBER, perhaps with an ending. With fields of another form,
-- as ports of Redisson write them, it is a lock only if it has a time to live. A simple lock is a
-- string that is an owner.
--
-- Another program's data may be of any size. So lengths are asked for first. The length of a
-- field's name is not known before the field is read: one is read before the others.
local MOST, LONGEST = 1000, 128

local function is_owner(text)
  local four = '%x%x%x%x'
  local uuid = four .. four .. string.rep('%-' .. four, 4) .. four .. four
  local owner = text:gsub(':kept$', ''):gsub(':write$', '')
  return string.find(owner, '^' .. uuid .. ':%d+$') ~= nil
end

local function value_of(key, field, longest)
  if redis.call('hstrlen', key, field) > longest then
    return ''
  end
  return redis.call('hget', key, field) or ''
end

-- The owners of a lock with their counts, some of them if there are more than MOST; nil if it is
-- not a lock. Then its mode, and how many owners there are.
local function owners_of(key)
  local count, mode = redis.call('hlen', key), nil
  if redis.call('hexists', key, 'mode') == 1 then
    count, mode = count - 1, value_of(key, 'mode', 5)
  end
  if mode and mode ~= 'read' and mode ~= 'write' then
    return nil
  end
  local first = redis.call('hrandfield', key)
  -- Only readers are more than MOST.
  if count < 1 or not first or #first > LONGEST or count > MOST and not mode then
    return nil
  end
  local lives, owners = redis.call('pttl', key) >= 0, {}
  for _, field in ipairs(redis.call('hrandfield', key, MOST + 1)) do
    if field ~= 'mode' then
      local count_of = value_of(key, field, 10)
      local is_held = #field <= LONGEST and string.find(count_of, '^[1-9]%d*$')
      if not (is_held and (lives or is_owner(field))) then
        return nil
      end
      if #owners < 2 * MOST then
        owners[#owners + 1] = field
        owners[#owners + 1] = tonumber(count_of)
      end
    end
  end
  return owners, mode, count
end

-- One of: none; lock, read, write, then the owners and how many there are; simple, number, then the
-- text. For anything else the type.
local function recognize(key)
  local kind = redis.call('type', key).ok
  if kind == 'hash' then
    local owners, mode, count = owners_of(key)
    if owners then
      return mode or 'lock', owners, count
    end
  elseif kind == 'string' and redis.call('strlen', key) <= LONGEST then
    local text = redis.call('get', key)
    if is_owner(text) then
      return 'simple', text
    elseif #text <= 20 and string.find(text, '^-?%d+$') then
      return 'number', text
    end
  end
  return kind
end

local function refusal(found)
  return redis.error_reply('WRONGTYPE holds ' .. found)
end

