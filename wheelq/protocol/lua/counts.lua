-- Count a shard's jobs by state, and tell how far each consumer group has read.
-- uses: clock, fields, stored, parts, score, retries, unfinished, hint, permits, held, group, tally, census
-- KEYS: 1 delayed, 2 ready, 3 dead, 4 jobs, 5 retries
-- Returns: {waiting, ready, running, retrying, dead, score of the first that is not held back or "", now_us, {how many are held
--          back, of how many keys, score of the first of them or ""}, and for each group: {name, entries it has not
--          been given, 1 if there are more, pending, id of the oldest it has not finished or ""}}.
-- One step, so that a job that is promoted meanwhile is counted once. A job counts in one state, whatever the number of
-- its attempts and groups; without a group everything promoted is ready.
local delayed, ready, dead, jobs, retries = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
return census(delayed, ready, dead, jobs, retries)
