-- Promote all jobs that are due, earliest first.
-- uses: clock, leader, head_parts, score, by, emit, lateness, retries, count, promote, shape, parts, unfinished, hint, stored, permits, held, key_limits, room, putting_back, writing_down, free_choice, choice, look_over, sweep_due, came
-- KEYS: 1 lease, 2 delayed, 3 jobs, 4 ready, 5 dead, 6 retries, 7 rate, 8 counts
-- ARGV: 1 token, 2 lease_ms, 3 most jobs (up to 500), 4 interval_us, 5 burst, 6 most unread, 7 most permits of a key, 8 most
--       promotions of a key a second (0: no limit), 9 where to look at held back jobs, 10 and at permits, or "-" not to
--       look (see look_over), then up to 100 keys to serve. A topic without limits needs only the first three
-- Returns: {1, now_us, lateness of those promoted, 1 if more may be due, us to wait before that (if any)}; {0} not the leader.
--          With limits per key {1, now_us, lateness, 1 or 0, us or "", how many jobs are held back or have permits, where to look next at
--          those and at permits, lateness of those promoted that had been held back, how many were held back just now, and
--          then, for keys that must be served again, SEPARATOR key, ms}.
local lease, delayed, jobs, ready, dead, retries = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local rate, counts = KEYS[7], KEYS[8]
local token, lease_ms, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not leads(lease, token, lease_ms) then return {0} end
local shape = {ARGV[4], ARGV[5], ARGV[6]}
local limits = limits_of(tonumber(ARGV[7] or 0), tonumber(ARGV[8] or 0))
local look = limits and {keys = {unpack(ARGV, 11)}, from = ARGV[9] ~= '-' and ARGV[9], permit = ARGV[10]}
local lateness, has_more, wait_us, chosen = sweep_due(delayed, jobs, ready, dead, retries, rate, limit, shape, counts, limits, look)
tell_came()
if not limits then return {1, now_us(), lateness, has_more, wait_us} end
return {1, now_us(), lateness, has_more, wait_us or '', limited_in(limit_keys(ready)), look.from or '', look.permit,
  chosen and chosen.lateness or {0}, chosen and chosen.put_back or 0, unpack(chosen and chosen.later or {})}
