-- Let dead jobs run again, each in the group that gave it up.
-- uses: clock, dead, exhume
-- KEYS: 1 dead, 2 delayed, 3 jobs, 4 horizon, 5 buried
-- ARGV: 1 near channel, 2 server ms before which none is due, 3 ms between two,
--       then for each of up to 100 jobs: dead entry id, its new record
-- Returns: {ms before which the next one is not to be due, for each job: 1 waits again, 0 not among the dead, 2 a live
--          job has its id, 3 it has no record}.
-- One step with the removal from the dead, so that a call repeated after a lost reply finds nothing to do.
-- Where nothing else of the job is alive, `jobs[id]` says "0-0": no entry, only runs that concern one group.
local dead, delayed, jobs, horizon, buried = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local near, due, spacing = ARGV[1], math.max(tonumber(ARGV[2]), now_ms()), tonumber(ARGV[3])
local NOT_HERE, WAITS, IS_ALIVE, NO_RECORD, NO_ENTRY = 0, 1, 2, 3, '0-0'
local loaded_to = tonumber(redis.call('GET', horizon) or -1)
local reply, rings = {0}, {}

local function replay(entry, record)
  local found = redis.call('XRANGE', dead, entry, entry)[1]
  if not found then return NOT_HERE end
  local fields = fields_of(found)
  local id, group = fields['id'], fields['group']
  if group == '' or fields['record'] == '' then return NO_RECORD end
  local member = id .. '\31' .. group
  local live = redis.call('HGET', jobs, id)
  local is_same_life = not live or live == NO_ENTRY or live == fields['entry']
  if not is_same_life or redis.call('HEXISTS', jobs, member) == 1 then return IS_ALIVE end
  local at = math.ceil(due)
  redis.call('ZADD', delayed, at, member)
  redis.call('HSET', jobs, member, record, id, live or NO_ENTRY)
  exhume(dead, buried, found)
  if at <= loaded_to then rings[#rings + 1] = string.format('%.0f %s', at, member) end
  due = due + spacing
  return WAITS
end

for n = 4, #ARGV, 2 do reply[#reply + 1] = replay(ARGV[n], ARGV[n + 1]) end
if #rings > 0 then redis.call('PUBLISH', near, table.concat(rings, '\n')) end
reply[1] = string.format('%.3f', due)
return reply
