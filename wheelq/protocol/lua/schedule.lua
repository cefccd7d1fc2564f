-- Schedule up to 500 jobs of one shard.
-- uses: clock, score, emit, terms, standing, pack, kept
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 horizon, 5 shards, 6 done
-- ARGV: 1 near channel, 2 "keep" or "replace", 3 the topic's terms, by which these jobs were placed, or "" to write
--       only where a live job has the id, then for each job: id, due (see clock), record
-- Returns: for each job, status and due_ms: 1 created, 2 replaced, 0 kept (a waiting job has the id), 3 kept (promoted),
--          4 no live job has the id, and none was to be made, 5 too many wait already; or {terms} if others are in
--          force: nothing done.
-- Atomic: nobody takes the id between look and write, and a leader sees the job in its window or is rung. A repeated
-- call finds its own record, also of a job that is done and kept, and says "created" again. The sorted set comes before
-- the hash: what is half-written is mended.
local delayed, jobs, ready, horizon, shards, done = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local near, replace, terms = ARGV[1], ARGV[2] == 'replace', ARGV[3]
local CREATED, NOT_HERE, FULL = 1, 4, 5
local in_force = terms ~= '' and redis.call('GET', shards)
if in_force and in_force ~= terms then return {in_force} end
local room, is_free = by_terms(delayed, terms)
local now, loaded_to = now_ms(), tonumber(redis.call('GET', horizon) or -1)
local ids, replies, scores, records, rings = {}, {}, {}, {}, {}
for n = 4, #ARGV, 3 do ids[#ids + 1] = ARGV[n] end
local known = redis.call('HMGET', jobs, unpack(ids))
local added = {} -- what this call wrote: id → {stored, due}; an id may stand twice in one call

-- Whether there was room. A new job that is due already goes straight to the stream, unless promotion is held back;
-- should the stream refuse it, it waits for the leader.
local function write(id, due, fraction, record, is_new)
  local entry = is_new and due <= now and is_free and emit(ready, id, due, record)
  if entry then
    redis.call('ZREM', delayed, id) -- it stands there if the half of a job did
  else
    if is_new and room < 1 then return false end
    room = is_new and room - 1 or room
    scores[#scores + 1], scores[#scores + 2] = score_of(due, fraction), id
    if due <= loaded_to then rings[#rings + 1] = string.format('%.0f %s', due, id) end
  end
  records[#records + 1], records[#records + 2] = id, entry or record
  added[id] = {entry or record, due}
  return true
end

for n, id in ipairs(ids) do
  local due, fraction = due_ms(ARGV[3 * n + 2])
  local record, mine = ARGV[3 * n + 3], added[id]
  local stored = mine and mine[1] or known[n]
  local status, live_due = CREATED, nil
  if stored then
    status, live_due = standing(delayed, ready, id, stored, record, mine and mine[2], replace, now)
  elseif terms == '' then
    status, live_due = NOT_HERE, 0
  else
    live_due = kept_due(done, id, record)
  end
  if not live_due and not write(id, due, fraction, record, not stored) then status, live_due = FULL, 0 end
  replies[2 * n - 1], replies[2 * n] = status, live_due or due
end
if #scores > 0 then redis.call('ZADD', delayed, unpack(scores)) end
if #records > 0 then redis.call('HSET', jobs, unpack(records)) end
if #rings > 0 then redis.call('PUBLISH', near, table.concat(rings, '\n')) end
return replies
