-- Reads the records of some slots of a job.
--
-- KEYS     of each slot its lock and its record
--
-- Answers for each slot the fields of the record as texts, and 1 if the run's owner has the lock of
-- the slot, else 0. Nothing for a slot without a record.
--
-- Atomic: Redis runs one script at a time. Keys of other types are no locks and no records.
local runs = {}
for key = 1, #KEYS, 2 do
  local lock, record, run = KEYS[key], KEYS[key + 1], {}
  local state = redis.pcall('hget', record, 'state')
  if type(state) == 'table' and not string.find(state.err, 'WRONGTYPE', 1, true) then
    -- What the server refuses this user is an error.
    redis.call('hget', record, 'state')
  end
  if type(state) == 'string' then
    for place, field in ipairs({'state', 'owner', 'attempts', 'token', 'host', 'started', 'ended', 'exit'}) do
      run[place] = redis.call('hget', record, field) or ''
    end
    local has = redis.pcall('hexists', lock, run[2])
    if type(has) == 'table' and not string.find(has.err, 'WRONGTYPE', 1, true) then
      redis.call('hexists', lock, run[2])
    end
    run[9] = has == 1 and 1 or 0
  end
  runs[#runs + 1] = run
end
return runs
