-- Schedule up to 500 jobs of one shard.
-- uses: clock, primary, wanted, stored, score, emit, terms, standing, pack, kept, hint, horizon, count, scheduled
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 horizon, 5 shards, 6 done, 7 counts (may be left out)
-- ARGV: 1 near channel, 2 "keep" or "replace", 3 the topic's terms, by which these jobs were placed, or "" to write
--       only where a live job has the id, then for each job: id, due (see clock), record
-- Returns: for each job, status and due_ms: 1 created, 2 replaced, 0 kept (a waiting job has the id), 3 kept (promoted),
--          4 no live job has the id, and none was to be made, 5 too many wait already; then the server's time in ms;
--          then 0 if the leader got no hint about jobs that are due soon; then 1 if these are the shard's first jobs.
--          Or {terms} if other terms are in force: nothing was done.
-- Atomic: no other call takes the id meanwhile, and the leader finds the job in its window or gets a hint. A repeated call
-- finds its own record, even of a finished job, and answers "created" again, or completes a job that was half written.
local delayed, jobs, ready, horizon = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local shards, done, counts = KEYS[5], KEYS[6], KEYS[7]
local near, replace, terms, CREATED, NOT_HERE, FULL = ARGV[1], ARGV[2] == 'replace', ARGV[3], 1, 4, 5
local in_force = terms ~= '' and redis.call('GET', shards)
if in_force and in_force ~= terms then return {in_force} end
local room, is_free = by_terms(delayed, terms)
local now, last = now_ms(), loaded_to(horizon)
local ids, dues, fractions = wanted(ARGV, 4)
local replies, scores, records, hints, made, n_scores, n_records = {}, {}, {}, {}, {}, 0, 0 -- `#` costs a search
local known = redis.call('HMGET', jobs, unpack(ids))
local added, stored_now = {}, {} -- what this call wrote: id → n, and n → what is stored; an id may occur twice
-- Returns whether there was room. A new job that is due already goes straight to the stream, unless promotion is held
-- back; if the stream refuses it, it waits for the leader.
local function write(n, id, due, record, is_new)
  local entry = is_new and due <= now and is_free and emit(ready, id, due, record)
  if entry then
    redis.call('ZREM', delayed, id) -- it is there if a script that failed half-way left it
  else
    if is_new and room < 1 then return false end
    room = is_new and room - 1 or room
    scores[n_scores + 1], scores[n_scores + 2], n_scores = score_of(due, fractions[n]), id, n_scores + 2
    if due <= last then hints[#hints + 1] = string.format('%.0f %s', due, id) end
  end
  records[n_records + 1], records[n_records + 2], n_records = id, entry or record, n_records + 2
  added[id], stored_now[n] = n, entry or record
  return true
end
for n, id in ipairs(ids) do
  local due, record, mine = dues[n], ARGV[3 * n + 3], added[id]
  local stored = mine and stored_now[mine] or known[n]
  local status, live_due = CREATED, nil
  if stored then
    status, live_due = standing(delayed, ready, id, stored, record, mine and dues[mine], replace, now)
  else
    live_due = kept_due(done, id, record)
    if not live_due and terms == '' then status, live_due = NOT_HERE, 0 end
  end
  if not live_due and not write(n, id, due, record, not stored) then status, live_due = FULL, 0 end
  made[status] = (made[status] or 0) + (status == CREATED and live_due and 0 or 1) -- a repeated call made nothing
  replies[2 * n - 1], replies[2 * n] = status, live_due or due
end
if n_scores > 0 then redis.call('ZADD', delayed, unpack(scores)) end
if n_records > 0 then redis.call('HSET', jobs, unpack(records)) else only_on_primary(jobs) end
local is_first = count_scheduled(counts, made, (n_records - n_scores) / 2)
replies[#replies + 1] = now
local text = #hints > 0 and table.concat(hints, '\n') or last < now and n_scores > 0 and ANY
if text and not hint(near, text) then replies[#replies + 1] = 0 end
if is_first then replies[#replies + 1] = 1 end
return replies
