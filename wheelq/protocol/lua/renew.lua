-- Prolong the lease, and look at the first waiting job.
-- uses: clock, leader, score, held, record
-- KEYS: 1 lease, 2 delayed, 3 counts, 4 history
-- ARGV: 1 token, 2 lease_ms, 3 hour of the history (see record)
-- Returns: {1, now_us, score of the first waiting job or ""}; {0} the lease is not the caller's.
-- Looking costs next to nothing, and tells a leader that sleeps past that job that it missed a hint.
local lease, delayed, counts, history = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, lease_ms, hour = ARGV[1], ARGV[2], ARGV[3]
if not leads(lease, token, lease_ms) then return {0} end
record(counts, history, hour, now_ms())
return {1, now_us(), first_of(delayed)}
