-- Promote all jobs that are due, earliest first.
-- uses: clock, leader, score, by, emit, lateness, retries, count, promote, shape, sweep_due, hint, came
-- KEYS: 1 lease, 2 delayed, 3 jobs, 4 ready, 5 dead, 6 retries, 7 rate, 8 counts
-- ARGV: 1 token, 2 lease_ms, 3 most jobs (up to 500), 4 interval_us, 5 burst, 6 most unread (4 to 6 only if shaped)
-- Returns: {1, now_us, lateness of those promoted, 1 if more may be due, us to wait before that (if any)}; {0} not the leader.
local lease, delayed, jobs, ready, dead, retries = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local rate, counts = KEYS[7], KEYS[8]
local token, lease_ms, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not leads(lease, token, lease_ms) then return {0} end
local shape = {ARGV[4], ARGV[5], ARGV[6]}
local lateness, has_more, wait_us = sweep_due(delayed, jobs, ready, dead, retries, rate, limit, shape, counts)
tell_came()
return {1, now_us(), lateness, has_more, wait_us}
