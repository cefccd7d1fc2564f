-- Schedule up to 500 jobs of one shard.
-- uses: clock, emit
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 horizon, 5 shards
-- ARGV: 1 near channel, 2 "keep" or "replace", 3 the number of shards by which these jobs were placed, or "" to write
--       only where a live job has the id, then for each job: id, due ("+ms" from now, or "ms" since the epoch), record
-- Returns: for each job, status and due_ms: 1 created, 2 replaced, 0 kept (a waiting job has the id), 3 kept (promoted),
--          4 no live job has the id, and none was to be made; or {number of shards} if another is in force: nothing done.
-- Atomic: nobody takes the id between look and write, and a leader sees the job in its window or is rung. A repeated
-- call finds its own record and says "created" again. The sorted set comes before the hash: what is half-written is mended.
local delayed, jobs, ready, horizon, shards = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local near, replace, placed_by = ARGV[1], ARGV[2] == 'replace', ARGV[3]
local CREATED, REPLACED, KEPT, KEPT_PROMOTED, NOT_HERE = 1, 2, 0, 3, 4
local in_force = placed_by ~= '' and redis.call('GET', shards)
if in_force and in_force ~= placed_by then return {tonumber(in_force)} end
local now, loaded_to = now_ms(), tonumber(redis.call('GET', horizon) or -1)
local ids, replies, scores, records, rings = {}, {}, {}, {}, {}
for n = 4, #ARGV, 3 do ids[#ids + 1] = ARGV[n] end
local known = redis.call('HMGET', jobs, unpack(ids))
local added = {} -- what this call wrote: id → {stored, due}; an id may stand twice in one call

-- The status, and the due time of the live job, or nothing when the new one is to be written.
local function decide(id, stored, record)
  if not stored and placed_by == '' then return NOT_HERE, 0 end
  if not stored then return CREATED end
  if string.byte(stored) >= 32 then -- an entry id: promoted; its record and due time stand in the entry
    local entry = redis.call('XRANGE', ready, stored, stored)[1]
    if not entry then return KEPT_PROMOTED, now end
    return entry[2][8] == record and CREATED or KEPT_PROMOTED, tonumber(entry[2][4])
  end
  local due = added[id] and added[id][2] or redis.call('ZSCORE', delayed, id)
  if not due then return CREATED end
  if stored == record then return CREATED, tonumber(due) end
  if replace then return REPLACED end
  return KEPT, tonumber(due)
end

-- A new job that is due already goes straight to the stream; should that be refused, it waits for the leader.
local function write(id, due, record, is_new)
  local entry = is_new and due <= now and emit(ready, id, due, record)
  if entry then
    redis.call('ZREM', delayed, id) -- it stands there if the half of a job did
  else
    scores[#scores + 1], scores[#scores + 2] = due, id
    if due <= loaded_to then rings[#rings + 1] = string.format('%.0f %s', due, id) end
  end
  records[#records + 1], records[#records + 2] = id, entry or record
  added[id] = {entry or record, due}
end

for n, id in ipairs(ids) do
  local due, record = due_ms(ARGV[3 * n + 2]), ARGV[3 * n + 3]
  local stored = added[id] and added[id][1] or known[n]
  local status, live_due = decide(id, stored, record)
  if not live_due then write(id, due, record, not stored) end
  replies[2 * n - 1], replies[2 * n] = status, live_due or due
end
if #scores > 0 then redis.call('ZADD', delayed, unpack(scores)) end
if #records > 0 then redis.call('HSET', jobs, unpack(records)) end
if #rings > 0 then redis.call('PUBLISH', near, table.concat(rings, '\n')) end
return replies
