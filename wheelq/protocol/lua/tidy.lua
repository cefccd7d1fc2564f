-- Remove what a shard has kept for long enough: entries that every group has acked, and finished jobs.
-- uses: clock, leader, parts, trim, forget
-- KEYS: 1 lease, 2 ready, 3 done, 4 ended, 5 counts
-- ARGV: 1 token, 2 lease_ms, 3 retention_ms, 4 keep_done_ms
-- Returns: {1, now_us, 1 if there may be more}; {0} not the leader.
-- Every ack does so too; this is for a shard in which nothing is acked any more.
local lease, ready, done, ended, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, lease_ms, retention_ms, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local JOBS = 1000 -- about a millisecond
if not leads(lease, token, lease_ms) then return {0} end
local now = now_ms()
local more = false
if redis.call('EXISTS', ready) == 1 then more = select(2, trim(ready, retention_ms, now, counts)) end
local forgotten = forget_done(done, ended, now - keep_ms, JOBS)
return {1, now_us(), (more or forgotten == JOBS) and 1 or 0}
