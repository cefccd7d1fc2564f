-- Schedule up to 500 jobs of one shard.
-- uses: clock, primary, head, stamp, life, head_parts, wanted, stored, score, emit, terms, again, standing, latest, debounce, debounced, field, kept_record, kept, hint, came, horizon, count, scheduled, tags, outgoing, bundles, joining
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 horizon, 5 shards, 6 done, 7 counts, 8 tags of even turns, 9 of odd, 10 bundles,
--       11 outgoing (7 to 11 may be left out; 10 and 11 are for members of bundles, and what may replace one)
-- ARGV: 1 near channel, 2 "keep" or "replace", 3 the topic's terms, by which these jobs were placed, perhaps with " @" and
--       their version, or "" to write only where a live job has the id, 4 tag of the call, or "", 5 ms for which its answer
--       is kept at least, 6 the tag counts only if a job is due within this many ms, 7 tag of an earlier call that will not
--       be repeated, or "", then for each job: id, due (see clock), record
-- Returns: for each job, status and due_ms: 1 created, 2 replaced, 0 kept (a waiting job has the id), 3 kept (promoted),
--          4 no live job has the id, and none was to be made, 5 too many wait already; 6 to 9 as 0 to 3, of the second id
--          of a debounced key; where it is kept, {due_ms, life of the live job} in place of due_ms; then the server's time
--          in ms; then 0 if the leader got no hint about jobs that are due soon; then 1 if these are the shard's first
--          jobs. Or {terms} if other terms are in force, {""} if the bundle is closed: nothing was done.
-- Atomic: no other call takes the id meanwhile, and the leader finds the job in its window or gets a hint. The tag comes
-- before the terms: a repeated call gets the first answer, whatever has happened to its jobs and to the topic since. If no
-- tag was kept, it finds its own record, even of a finished job, answers "created", and completes a half-written job.
local delayed, jobs, ready, horizon, shards, done = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local counts, even, odd, bundles, outgoing = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local near, replace, terms, tag = ARGV[1], ARGV[2] == 'replace', ARGV[3], ARGV[4]
local FIRST, CREATED, NOT_HERE, FULL, OF_SECOND = 8, 1, 4, 5, 6
local now, ids, dues, fractions, soonest = now_ms(), wanted(ARGV, FIRST)
local is_tagged = odd and tag ~= '' and soonest <= now + tonumber(ARGV[6])
local answer = is_tagged and answer_to(tag, even, odd)
if answer then only_on_primary(jobs); return answered(answer, ARGV, FIRST, now) end
local placed_by, in_force = terms_of(shards, terms)
local bundle, is_shut = unpack(bundles and {bundle_for(bundles, ARGV[FIRST + 2], terms == '' and jobs, ids)} or {})
if is_shut or in_force then return {is_shut and '' or in_force} end
local last, stamp, room, is_free = loaded_to(horizon), stamp_of(now), by_terms(delayed, placed_by)
local known, keeps_any = redis.call('HMGET', jobs, unpack(ids)), redis.call('EXISTS', done) == 1
local replies, scores, records, hints, joining, ends, made, written = {}, {}, {}, {}, {}, {}, {[CREATED] = 0}, {}
-- written: id → its last job in this call. As it runs for every job, numbers count what `#` would search for.
local n_scores, n_records, n_created, all_as_asked, sub, byte = 0, 0, 0, true, string.sub, string.byte
-- Returns whether there was room. A new job that is due already goes straight to the stream, unless it `waits` (is
-- debounced) or promotion is held back; if the stream refuses it, it waits for the leader.
local function write(n, id, due, record, stored, waits)
  local entry = not stored and due <= now and is_free and not waits and emit(ready, id, due, record)
  if entry then
    redis.call('ZREM', delayed, id) -- it is there if a script that failed half-way left it
  else
    if not stored and room < 1 then return false end
    room = stored and room or room - 1
    scores[n_scores + 1], scores[n_scores + 2] = fractions[n] == 0 and due or score_of(due, fractions[n]), id
    n_scores = n_scores + 2
    if due <= last then hints[#hints + 1] = string.format('%.0f %s', due, id) end
  end
  records[n_records + 1], records[n_records + 2] = id, entry or record
  n_records = n_records + 2
  written[id] = n
  if bundles then note_member(joining, ends, bundle, stored, record, id) end
  return true
end
for n, id in ipairs(ids) do
  local due, sent, may_replace = dues[n], ARGV[FIRST + 3 * n - 1], replace
  local record, stored = stamp .. sub(sent, 8), written[id] and latest(records, n_records, id) or known[n] -- as `stamped`
  local wait = replace and byte(sent, 9) % 2 == 1 and wait_of(sent)
  if wait then
    local other = written[id .. SECOND] and latest(records, n_records, id .. SECOND)
    id, stored, due, record, may_replace = debounced(jobs, delayed, ready, id, sent, due, now, stored, other)
  end
  local is_second, mine, status, live_due, life = id ~= ids[n], written[id], CREATED, nil, nil
  if is_second or due ~= dues[n] then dues[n], all_as_asked = due, false end
  if stored then
    status, live_due, life = standing(delayed, jobs, ready, id, stored, record, mine and dues[mine], may_replace, now)
  elseif keeps_any then
    live_due = kept_due(done, id, record)
  end
  if not (stored or live_due or is_second) and terms == '' then status, live_due = NOT_HERE, 0 end
  if not live_due and not write(n, id, due, record, stored, wait) then status, live_due = FULL, 0 end
  if status ~= CREATED then
    made[status] = (made[status] or 0) + 1
  elseif not live_due then -- else a repeated call, which made nothing
    n_created = n_created + 1
  end
  if is_second and status < NOT_HERE then status = status + OF_SECOND end
  replies[2 * n - 1], replies[2 * n] = status, life and {live_due, life} or live_due or due
end
made[CREATED] = n_created
if n_scores > 0 then redis.call('ZADD', delayed, unpack(scores)) end
if n_records > 0 then redis.call('HSET', jobs, unpack(records)) else only_on_primary(jobs) end
-- Not before, because a server that is out of memory refuses only a script's first write.
if odd and ARGV[7] ~= '' then redis.pcall('HDEL', even, ARGV[7]); redis.pcall('HDEL', odd, ARGV[7]) end
if is_tagged then keep_answer(tag, not (n_created == #ids and all_as_asked) and replies, even, odd, tonumber(ARGV[5])) end
if bundles then join(bundles, bundle, joining); count_ends(bundles, outgoing, near, ends) end
local is_first = count_scheduled(counts, made, (n_records - n_scores) / 2)
replies[#replies + 1] = now
local text = #hints > 0 and table.concat(hints, '\n') or last < now and n_scores > 0 and ANY
if text and not hint(near, text) then replies[#replies + 1] = 0 end
if is_first then replies[#replies + 1] = 1 end
tell_came()
return replies
