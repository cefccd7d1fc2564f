-- Run dead jobs again, each in the group that gave it up.
-- uses: clock, life, stored, life_behind, head_parts, fields, hint, outgoing, bundles, remove_dead, retries, horizon
-- KEYS: 1 dead, 2 delayed, 3 jobs, 4 horizon, 5 buried, 6 retries, 7 replays, 8 bundles, 9 outgoing, 10 ready
-- ARGV: 1 near channel, 2 server ms before which none is due, 3 ms between two,
--       then for each of up to 100 jobs: dead entry id, its new record
-- Returns: {ms before which the next job must not be due, for each job: 1 waits again, 0 not among the dead, 2 a live
--          job has its id, 3 it has no record}.
-- Each job is removed from the dead in the same step, so a call repeated after a lost reply finds nothing to do.
-- The time of the last replay is kept for a day, for a caller that checks whether a shard is empty: it would miss a job
-- that moves from the dead to the living while it looks.
-- If nothing else of the job is alive, `jobs[id]` is "0-0": no entry, only runs that concern one group. A job that no group
-- has seen, because it could not be delivered to its topic, waits for all of them.
local dead, delayed, jobs, horizon, buried, retries = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local replays, bundles, outgoing, ready, ends = KEYS[7], KEYS[8], KEYS[9], KEYS[10], {}
local near, due, spacing = ARGV[1], math.max(tonumber(ARGV[2]), now_ms()), tonumber(ARGV[3])
local NOT_HERE, WAITS, IS_ALIVE, NO_RECORD, NO_ENTRY = 0, 1, 2, 3, '0-0'
local last = loaded_to(horizon)
local reply, hints, dues, any_new = {0}, {}, {}, false

-- Whether some group has a run of another job with this id: then the id is taken.
local function is_taken(id, life)
  for _, info in ipairs(redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
    local stored = redis.call('HGET', jobs, id .. '\31' .. info[2])
    local its = stored and life_behind(ready, stored)
    if its and its ~= life then return true end
  end
  return false
end

local function replay(entry, record)
  local found = redis.call('XRANGE', dead, entry, entry)[1]
  if not found then return NOT_HERE end
  local fields = fields_of(found[2])
  local id, group = fields['id'], fields['group']
  if not id or (fields['record'] or '') == '' then return NO_RECORD end
  local is_new = (group or '') == ''
  local member = is_new and id or id .. '\31' .. group
  local live = redis.call('HGET', jobs, id)
  local is_called_back = live == NO_ENTRY and not is_taken(id, life_of(record))
  local is_same_life = not live or live == fields['entry'] or is_called_back
  if not is_same_life or redis.call('HEXISTS', jobs, member) == 1 then return IS_ALIVE end
  local at = math.ceil(due)
  redis.call('ZADD', delayed, at, member)
  redis.call('HSET', jobs, member, record)
  local known = #ends
  remove_dead(dead, buried, found, ends)
  if #ends > known then ends[#ends][2] = 'replayed' end
  if is_new then
    any_new = true
  else
    redis.call('HSET', jobs, id, live or NO_ENTRY)
    dues[#dues + 1] = at
  end
  if at <= last then hints[#hints + 1] = string.format('%.0f %s', at, member) end
  due = due + spacing
  return WAITS
end

for n = 4, #ARGV, 2 do reply[#reply + 1] = replay(ARGV[n], ARGV[n + 1]) end
count_retries(retries, dues, 1)
if #ends > 0 then count_ends(bundles, outgoing, near, ends) end
local text = #hints > 0 and table.concat(hints, '\n') or last < now_ms() and (#dues > 0 or any_new) and ANY
if text then hint(near, text) end
if #dues > 0 or any_new then
  redis.call('HSET', replays, ':dead', now_us())
  redis.call('PEXPIRE', replays, 86400000)
end
reply[1] = string.format('%.3f', due)
return reply
