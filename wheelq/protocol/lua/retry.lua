-- Acknowledge a failed delivery, and let the job wait for its next run, in this group only.
-- uses: clock, stored, full, owned, parts, unfinished, retries, hint, permits, horizon, hint_due, count
-- KEYS: 1 ready, 2 jobs, 3 delayed, 4 horizon, 5 retries (counts those that wait), 6 counts (may be left out)
-- ARGV: 1 group, 2 consumer, 3 entry id, 4 id, 5 pause_ms, 6 near channel, 7 record of the next run, 8 number of the
--       lease (only of leased deliveries; else "" or left out), 9 outcome to count (may be left out: retried)
-- Returns: due_ms of the next run; 0 when the delivery was no longer the caller's (nothing changed).
-- One step, so that the job is always either pending or waiting. The next run is written before the last one is
-- acknowledged. `jobs[id]` keeps pointing at the first entry, so the id stays taken until the job is finished. A run
-- that is not of the live job (it is from a rerun, or its job has ended in all other groups) waits under a member of its own
-- and keeps no id taken; so does any run while another life of the id waits under that of the group.
local ready, jobs, delayed, horizon, retries, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local group, consumer, entry, id, pause_ms, near, record = unpack(ARGV)
local lease, outcome = ARGV[8] ~= '' and ARGV[8], ARGV[9] or 'retried'
if not owns(ready, group, consumer, entry, lease, id) then return 0 end
write_though_full(ready)
local due = due_ms('+' .. pause_ms)
local member = id .. '\31' .. group
local other = redis.call('HGET', jobs, member)
local is_of_live = other == entry or redis.call('HGET', jobs, id) == entry
local is_taken = other and not is_entry(other) -- a record, which waits: an earlier release wrote that of a rerun there
if is_taken or not is_of_live then
  member = member .. '\31' .. entry
end
redis.call('ZADD', delayed, due, member)
redis.call('HSET', jobs, member, record)
count_retries(retries, {due}, 1)
redis.call('XACK', ready, group, entry)
give_back(ready, group, {entry})
hint_due(near, horizon, due, member)
count(counts, outcome .. '\31' .. group, 1)
return due
