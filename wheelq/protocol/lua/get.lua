-- Look one job up.
-- uses: clock, fields, parts, head, stored, put_off, life, head_parts, again, debounce, field, kept_record
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 done, 5 buried, 6 dead, 7 progress
-- ARGV: 1 id, 2 life of the job that is meant, or "" for the latest with this id (may be left out)
-- Returns: {} the job is unknown; {due_ms, record} it is waiting; else {due_ms or "", record or "", first entry id or "",
--   what is kept of it or "", and for each group that it concerns: {name, state, …}}, where state is
--   "retrying", due_ms, record of the next attempt, progress | "running", due_ms, record, progress, consumer, deliveries |
--   "ready", due_ms, record | "dead", entry id among the dead, its fields | "finished" (what is kept tells more) |
--   "kept", what is kept of its earlier attempts (beside another state, or alone). Then, if the job under
--   the second id of a debounced key is alive: {"", id of the job found, second id if that is of another, else ""}
-- Atomic, so that a job is found even if it is promoted at this moment.
local delayed, jobs, ready, done, buried, dead, progress = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local id, life = ARGV[1], ARGV[2] or ''
-- A record that another program removed, or wrote in another form, may be of any life.
local function is_meant(record)
  return life == '' or not is_record(record) or life_of(record) == life
end
local function look_into(entry)
  local found = entry and redis.call('XRANGE', ready, entry, entry)[1]
  if found then return found[2][4], found[2][8] or '' end
  return '', ''
end
local stored = redis.call('HGET', jobs, id)
local second, its = nil, nil
if life == '' then second, its = second_of(jobs, ready, id) end
local of_key = second and {'', stored and id or second, stored and second or ''}
if second and not stored then
  id, stored = second, its
end
local due = stored and redis.call('ZSCORE', delayed, id)
if due and is_meant(stored) then return {due, stored, of_key} end
local first_due, record = look_into(not due and stored)
local its_record = record == '' and stored and not due and again_of(jobs, ready, id) or record
if due or not is_meant(its_record) then -- the live job is another one with this id
  stored, first_due, record = nil, '', ''
elseif life == '' then
  life = life_of(its_record) -- "" if no job is alive: then what is left of any is told
end
local kept = redis.call('HGET', done, id) or ''
if not is_meant(kept_record(kept)) then kept = '' end
local function state_in(group, read_to)
  local member = id .. '\31' .. group
  local again = redis.call('HGET', jobs, member)
  local again_due = again and redis.call('ZSCORE', delayed, member)
  local note = redis.call('HGET', progress, member) or ''
  if again_due and is_meant(again) then return {group, 'retrying', again_due, again, note} end
  local entry = not again_due and again or stored
  local its_due, its_record = look_into(entry)
  if not is_meant(its_record) then entry = nil end
  local pending = entry and redis.call('XPENDING', ready, group, entry, entry, 1)[1]
  if pending then
    local next_due, next_record = next_run(order_of(ready, group), entry)
    if next_due and tonumber(next_due) > now_ms() then return {group, 'retrying', next_due, next_record, note} end
    return {group, 'running', next_due or its_due, next_record or its_record, note, pending[2], pending[4]}
  end
  if entry and after(entry, read_to) then return {group, 'ready', its_due, its_record} end
  local dead_id = redis.call('HGET', buried, member)
  local found = dead_id and redis.call('XRANGE', dead, dead_id, dead_id)[1]
  if found and is_meant(fields_of(found[2])['record'] or '') then return {group, 'dead', dead_id, found[2]} end
  return stored and {group, 'finished'}
end
local reply = {first_due, record, stored or '', kept}
if redis.call('EXISTS', ready) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
    local fields = fields_of(info)
    local group = fields['name']
    reply[#reply + 1] = state_in(group, fields['last-delivered-id']) or nil
    local earlier = kept ~= '' and redis.call('HGET', done, id .. '\31' .. group)
    if earlier then reply[#reply + 1] = {group, 'kept', earlier} end
  end
end
reply[#reply + 1] = of_key
return (stored or kept ~= '' or #reply > 4) and reply or {}
