-- Prolong the lease, and look at what waits first.
-- uses: clock, leader
-- KEYS: 1 lease, 2 delayed
-- ARGV: 1 token, 2 lease_ms
-- Returns: {1, now_us, score of the first waiting job or ""}; {0} the lease is not the caller's.
-- The look costs nothing more and tells a leader that sleeps till later that it missed a hint.
local lease, delayed = KEYS[1], KEYS[2]
local token, lease_ms = ARGV[1], ARGV[2]
if not leads(lease, token, lease_ms) then return {0} end
return {1, now_us(), redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2] or ''}
