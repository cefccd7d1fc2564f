-- Look one job up.
-- uses: parts
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 done, 5 buried, 6 dead, 7 progress
-- ARGV: 1 id
-- Returns: {} nothing is known of it; {due_ms, record} waiting; else {due_ms or "", record or "", first entry id or "",
--   what is kept of it or "", and for each group that has to do with it: {name, state, …}}, where state is
--   "retrying", due_ms, record of the next attempt, progress | "running", due_ms, record, progress, consumer, deliveries |
--   "ready", due_ms, record | "dead", entry id among the dead, its fields | "finished" (what is kept tells more)
-- Atomic, so that a job that is promoted meanwhile is not missed.
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
  local said = redis.call('HGET', progress, member) or ''
  if again_due then return {group, 'retrying', again_due, again, said} end
  local entry = again or stored
  local its_due, record = look_into(entry)
  local pending = entry and redis.call('XPENDING', ready, group, entry, entry, 1)[1]
  if pending then return {group, 'running', its_due, record, said, pending[2], pending[4]} end
  if entry and after(entry, read_to) then return {group, 'ready', its_due, record} end
  local grave = redis.call('HGET', buried, member)
  -- One from an earlier life of the id lies before this life's entry, and is not meant.
  local lies = grave and (not stored or after(grave, stored)) and redis.call('XRANGE', dead, grave, grave)[1]
  if lies then return {group, 'dead', grave, lies[2]} end
  return stored and {group, 'finished'}
end
local first_due, record = look_into(stored)
local reply = {first_due, record, stored or '', redis.call('HGET', done, id) or ''}
if redis.call('EXISTS', ready) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
    local fields = {}
    for n = 1, #info, 2 do fields[info[n]] = info[n + 1] end
    reply[#reply + 1] = state_in(fields['name'], fields['last-delivered-id']) or nil
  end
end
return (stored or reply[4] ~= '' or #reply > 4) and reply or {}
