-- standing(delayed, ready, id, stored, record, due, replace, now): how a new job stands to the live one with its id.
-- `stored` is what the hash holds for the live one; `due` its due time, if known. Returns the status and the due time of
-- the live job, or the status alone when the new one is to be written.
local function standing(delayed, ready, id, stored, record, due, replace, now)
  local KEPT, CREATED, REPLACED, KEPT_PROMOTED = 0, 1, 2, 3
  if string.byte(stored) >= 32 then -- an entry id: promoted; its record and due time stand in the entry
    local entry = redis.call('XRANGE', ready, stored, stored)[1]
    if not entry then return KEPT_PROMOTED, now end
    return entry[2][8] == record and CREATED or KEPT_PROMOTED, tonumber(entry[2][4])
  end
  due = due or due_of(redis.call('ZSCORE', delayed, id))
  if not due then return CREATED end
  if stored == record then return CREATED, due end
  if replace then return REPLACED end
  return KEPT, due
end
