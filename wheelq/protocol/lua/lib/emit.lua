-- emit(ready, member, due, record): adds one entry to the ready stream. Returns its id, or nil when it was refused.
-- A failure is returned and not raised, because a script that fails half-way is not rolled back: the caller leaves
-- this job waiting and still records what was added before it.
-- A member is an id, or `id SEPARATOR group`, perhaps with `SEPARATOR entry` behind it (see retry).
-- Entry fields, in this order: id, due, attempt, record, and group (only for a retry, which concerns one group).
local SEPARATOR = '\31'
local function emit(ready, member, due, record)
  local attempt = string.byte(record, 2)
  local cut = string.find(member, SEPARATOR, 1, true)
  local entry
  if cut then
    entry = redis.pcall('XADD', ready, '*', 'id', string.sub(member, 1, cut - 1), 'due', due, 'attempt', attempt,
      'record', record, 'group', string.match(member, '^[^\31]*', cut + 1))
  else
    entry = redis.pcall('XADD', ready, '*', 'id', member, 'due', due, 'attempt', attempt, 'record', record)
  end
  if type(entry) == 'table' then return nil end
  return entry
end
