-- Promote the named members that are due.
-- uses: clock, leader, score, held, by, ranked, emit, lateness, retries, count, promote, named, hint, came
-- KEYS: 1 lease, 2 delayed, 3 jobs, 4 ready, 5 dead, 6 retries, 7 counts
-- ARGV: 1 token, 2 lease_ms, then up to 500 members
-- Returns: {1, now_us, lateness of those promoted, score of the first job that still waits or "", member, score, ...} with
--          those that wait for a later time; {0} not the leader.
-- One step, so that two nodes that promote at once cannot both find a job.
local lease, delayed, jobs, ready, dead, retries, counts = unpack(KEYS)
local token, lease_ms = ARGV[1], ARGV[2]
local reply = promote_named(token, lease_ms, ARGV, 3, #ARGV, lease, delayed, jobs, ready, dead, retries, counts)
tell_came()
return reply
