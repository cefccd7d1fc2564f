-- Give a delivery up: put the job among the dead, with the reason, and acknowledge the delivery.
-- uses: clock, stored, full, owned, parts, life, head_parts, unfinished, finish, trim, fields, hint, permits, outgoing, bundles, remove_dead, trim_dead, tell, mark_dead, count
-- KEYS: 1 ready, 2 jobs, 3 dead, 4 buried, 5 progress, 6 news, 7 counts, 8 outgoing, 9 bundles (7 to 9 may be left
--       out)
-- ARGV: 1 group, 2 consumer, 3 entry id, 4 id, 5 member, 6 attempt, 7 due_ms of the first attempt, 8 reason, 9 error,
--       10 traceback, 11 retention_ms, 12 dead_retention_ms, 13 most dead jobs, 14 record with its last attempt in it, or
--       "" to take the entry's (may be left out), 15 number of the lease (only of leased deliveries; else "" or left out),
--       16 near channel (with 9), then the job that tells of the death, as `send_on` takes it (both may be left out)
-- Returns: id of the dead entry; "" when the delivery was no longer the caller's, "full" when there is no room for the job
--          that tells of it (nothing changed).
-- protocol/calls/dead.py lists the fields of a dead entry. It is written before the acknowledgement, in one step.
local ready, jobs, dead, buried, progress, news = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local counts, COUNTED = KEYS[7], {expired = 'expired', misfired = 'expired', cancelled = 'cancelled'}
local group, consumer, entry, id, member, attempt, first_due, reason, error_text, traceback = unpack(ARGV)
local new_record = ARGV[14] or ''
local retention_ms, dead_retention_ms, dead_max = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local outgoing, bundles, near, NOTICE, ends = KEYS[8], KEYS[9], ARGV[16], 17, {}
if not owns(ready, group, consumer, entry, ARGV[15] ~= '' and ARGV[15], id) then return '' end
if ARGV[NOTICE] and room_in(outgoing) < 1 then return 'full' end
write_though_full(ready)
if ARGV[NOTICE] then
  local size = redis.call('XLEN', outgoing)
  send_on(outgoing, ARGV, NOTICE)
  hint_outgoing(near, size)
end
local found = redis.call('XRANGE', ready, entry, entry)[1]
-- Another program deleted the entry, or wrote it in another form.
found = found and #found[2] >= 8 and found[2] or {'id', id, 'due', 0, 'attempt', 0, 'record', ''}
local first, retried = unpack(redis.call('HMGET', jobs, id, id .. '\31' .. group))
local pointer = first and (first == entry or retried == entry) and first or '' -- none for a run from a rerun
local its_record = new_record ~= '' and new_record or found[8]
local dead_id = redis.call('XADD', dead, '*', 'id', id, 'due', found[4], 'attempt', attempt, 'group', group,
  'reason', reason, 'error', error_text, 'traceback', traceback, 'first_due', first_due,
  'entry', pointer, 'record', its_record)
mark_dead(buried, progress, news, id, group, dead_id)
redis.call('XACK', ready, group, entry)
give_back(ready, group, {entry})
if bundles and pointer ~= '' and bundle_of(its_record) then ends[1] = {life_of(its_record), 'buried'} end
for _, ended in ipairs(finish(ready, jobs, group, {entry}, {member})) do
  if ended == id and ends[1] then ends[2] = {life_of(its_record), 'done'} end
end
trim(ready, retention_ms, now_ms(), counts)
trim_dead(dead, buried, dead_retention_ms, dead_max, now_ms(), bundles and ends)
count(counts, (COUNTED[reason] or 'buried') .. '\31' .. group, 1)
if #ends > 0 then count_ends(bundles, outgoing, near, ends) end
return dead_id
