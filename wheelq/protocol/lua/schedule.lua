-- Schedule up to 500 jobs of one shard.
-- uses: clock, primary, stamp, life, wanted, stored, score, emit, terms, standing, field, kept_record, kept, hint, horizon, count, scheduled, tags
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 horizon, 5 shards, 6 done, 7 counts, 8 tags of even turns, 9 tags of odd turns
--       (7 to 9 may be left out)
-- ARGV: 1 near channel, 2 "keep" or "replace", 3 the topic's terms, by which these jobs were placed, or "" to write
--       only where a live job has the id, 4 tag of the call, or "", 5 ms for which its answer is kept at least, 6 the tag
--       counts only if a job is due within this many ms, 7 tag of an earlier call that will not be repeated, or "", then
--       for each job: id, due (see clock), record
-- Returns: for each job, status and due_ms: 1 created, 2 replaced, 0 kept (a waiting job has the id), 3 kept (promoted),
--          4 no live job has the id, and none was to be made, 5 too many wait already; where it is kept, {due_ms, life of
--          the live job} in place of due_ms; then the server's time in ms; then 0 if the leader got no hint about jobs that
--          are due soon; then 1 if these are the shard's first jobs.
--          Or {terms} if other terms are in force: nothing was done.
-- Atomic: no other call takes the id meanwhile, and the leader finds the job in its window or gets a hint. The tag comes
-- before the terms: a repeated call gets the first answer, whatever has happened to its jobs and to the topic since. Where
-- no tag was kept, it finds its own record, even of a finished job, and answers "created" again, or completes a job that
-- was half written.
local delayed, jobs, ready, horizon = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local shards, done, counts, even, odd = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local near, replace, terms, tag = ARGV[1], ARGV[2] == 'replace', ARGV[3], ARGV[4]
local FIRST, CREATED, KEPT, KEPT_PROMOTED, NOT_HERE, FULL = 8, 1, 0, 3, 4, 5
local now = now_ms()
local ids, dues, fractions, soonest = wanted(ARGV, FIRST)
local is_tagged = odd and tag ~= '' and soonest <= now + tonumber(ARGV[6])
local answer = is_tagged and answer_to(tag, even, odd)
if answer then only_on_primary(jobs); return answered(answer, ARGV, FIRST, now) end
local in_force = terms ~= '' and redis.call('GET', shards)
if in_force and in_force ~= terms then return {in_force} end
local room, is_free = by_terms(delayed, terms)
local last, stamp = loaded_to(horizon), stamp_of(now)
local known, keeps_any = redis.call('HMGET', jobs, unpack(ids)), redis.call('EXISTS', done) == 1
local replies, scores, records, hints, made = {}, {}, {}, {}, {[CREATED] = 0}
local written = {} -- id → the last of its jobs that this call wrote; an id may occur twice
-- Runs for every job, so numbers count what `#` would search for, and calls that can be left out are.
local n_scores, n_records, n_created, sub = 0, 0, 0, string.sub
-- Returns whether there was room. A new job that is due already goes straight to the stream, unless promotion is held
-- back; if the stream refuses it, it waits for the leader.
local function write(n, id, due, record, is_new)
  local entry = is_new and due <= now and is_free and emit(ready, id, due, record)
  if entry then
    redis.call('ZREM', delayed, id) -- it is there if a script that failed half-way left it
  else
    if is_new and room < 1 then return false end
    room = is_new and room - 1 or room
    local fraction = fractions[n]
    scores[n_scores + 1], scores[n_scores + 2] = fraction == 0 and due or score_of(due, fraction), id
    n_scores = n_scores + 2
    if due <= last then hints[#hints + 1] = string.format('%.0f %s', due, id) end
  end
  records[n_records + 1], records[n_records + 2] = id, entry or record
  n_records = n_records + 2
  written[id] = n
  return true
end
for n, id in ipairs(ids) do
  local due, record, mine = dues[n], stamp .. sub(ARGV[FIRST + 3 * n - 1], 8), written[id] -- as `stamped`
  local stored = known[n]
  if mine then
    local at = n_records
    while records[at - 1] ~= id do at = at - 2 end
    stored = records[at]
  end
  local status, live_due, life = CREATED, nil, nil
  if stored then
    status, live_due, life = standing(delayed, ready, id, stored, record, mine and dues[mine], replace, now)
  elseif keeps_any then
    live_due = kept_due(done, id, record)
  end
  if not (stored or live_due) and terms == '' then status, live_due = NOT_HERE, 0 end
  if not live_due and not write(n, id, due, record, not stored) then status, live_due = FULL, 0 end
  if status ~= CREATED then
    made[status] = (made[status] or 0) + 1
  elseif not live_due then -- else a repeated call, which made nothing
    n_created = n_created + 1
  end
  replies[2 * n - 1], replies[2 * n] = status, life and {live_due, life} or live_due or due
end
made[CREATED] = n_created
if n_scores > 0 then redis.call('ZADD', delayed, unpack(scores)) end
if n_records > 0 then redis.call('HSET', jobs, unpack(records)) else only_on_primary(jobs) end
-- Not before, because a server that is out of memory refuses only a script's first write.
if odd and ARGV[7] ~= '' then redis.pcall('HDEL', even, ARGV[7]); redis.pcall('HDEL', odd, ARGV[7]) end
if is_tagged then keep_answer(tag, n_created ~= #ids and replies, even, odd, tonumber(ARGV[5])) end
local is_first = count_scheduled(counts, made, (n_records - n_scores) / 2)
replies[#replies + 1] = now
local text = #hints > 0 and table.concat(hints, '\n') or last < now and n_scores > 0 and ANY
if text and not hint(near, text) then replies[#replies + 1] = 0 end
if is_first then replies[#replies + 1] = 1 end
return replies
