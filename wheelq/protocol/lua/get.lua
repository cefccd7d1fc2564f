-- Look one job up.
-- uses: fields, parts
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 done, 5 buried, 6 dead, 7 progress
-- ARGV: 1 id
-- Returns: {} the job is unknown; {due_ms, record} it is waiting; else {due_ms or "", record or "", first entry id or "",
--   what is kept of it or "", and for each group that it concerns: {name, state, …}}, where state is
--   "retrying", due_ms, record of the next attempt, progress | "running", due_ms, record, progress, consumer, deliveries |
--   "ready", due_ms, record | "dead", entry id among the dead, its fields | "finished" (what is kept tells more) |
--   "kept", what is kept of its earlier attempts (beside another state, or alone)
-- Atomic, so that a job is found even if it is promoted at this moment.
local delayed, jobs, ready, done, buried, dead, progress = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local id = ARGV[1]
local stored = redis.call('HGET', jobs, id)
local due = stored and redis.call('ZSCORE', delayed, id)
if due then return {due, stored} end
local function look_into(entry)
  local found = entry and redis.call('XRANGE', ready, entry, entry)[1]
  if found then return found[2][4], found[2][8] end
  return '', ''
end
local function state_in(group, read_to)
  local member = id .. '\31' .. group
  local again = redis.call('HGET', jobs, member)
  local again_due = again and redis.call('ZSCORE', delayed, member)
  local note = redis.call('HGET', progress, member) or ''
  if again_due then return {group, 'retrying', again_due, again, note} end
  local entry = again or stored
  local its_due, record = look_into(entry)
  local pending = entry and redis.call('XPENDING', ready, group, entry, entry, 1)[1]
  if pending then return {group, 'running', its_due, record, note, pending[2], pending[4]} end
  if entry and after(entry, read_to) then return {group, 'ready', its_due, record} end
  local dead_id = redis.call('HGET', buried, member)
  -- A dead entry from an earlier life of the id lies before this life's entry, and does not count.
  local found = dead_id and (not stored or after(dead_id, stored)) and redis.call('XRANGE', dead, dead_id, dead_id)[1]
  if found then return {group, 'dead', dead_id, found[2]} end
  return stored and {group, 'finished'}
end
local first_due, record = look_into(stored)
local reply = {first_due, record, stored or '', redis.call('HGET', done, id) or ''}
if redis.call('EXISTS', ready) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
    local fields = fields_of(info)
    local group = fields['name']
    reply[#reply + 1] = state_in(group, fields['last-delivered-id']) or nil
    local earlier = reply[4] ~= '' and redis.call('HGET', done, id .. '\31' .. group)
    if earlier then reply[#reply + 1] = {group, 'kept', earlier} end
  end
end
return (stored or reply[4] ~= '' or #reply > 4) and reply or {}
