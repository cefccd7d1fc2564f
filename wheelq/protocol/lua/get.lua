-- Look one job up.
-- KEYS: 1 delayed, 2 jobs, 3 ready
-- ARGV: 1 id
-- Returns: {} not found; {due_ms, record} waiting; {due_ms, record, entry id, 1 if some group has it delivered, 1 if it
--          waits for a retry in some group} promoted. Of a retry, due_ms and record are those of the next attempt.
-- Atomic, so that a job that is promoted meanwhile is not missed.
local delayed, jobs, ready = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]
local stored = redis.call('HGET', jobs, id)
if not stored then return {} end
local due = redis.call('ZSCORE', delayed, id)
if due then return {due, stored} end
local record, is_delivered, is_retrying = '', 0, 0
local function look_into(entry, group)
  local found = redis.call('XRANGE', ready, entry, entry)[1]
  if found then
    due, record = found[2][4], found[2][8]
  end
  if group and #redis.call('XPENDING', ready, group, entry, entry, 1) > 0 then is_delivered = 1 end
end
look_into(stored)
if redis.call('EXISTS', ready) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
    local member = id .. '\31' .. info[2]
    local again = redis.call('HGET', jobs, member)
    local again_due = again and redis.call('ZSCORE', delayed, member)
    if again_due then
      due, record, is_retrying = again_due, again, 1
    else
      look_into(again or stored, info[2])
    end
  end
end
return {due or '0', record, stored, is_delivered, is_retrying}
