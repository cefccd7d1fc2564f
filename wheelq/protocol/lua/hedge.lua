-- Promote what is due in place of a leader that does not: without a lease, and only what has been overdue for a while.
-- uses: clock, full, score, emit, lateness, promote, shape, sweep_due
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 dead, 5 rate, 6 shards
-- ARGV: 1 hedge_ms the first job must be overdue, 2 most jobs (up to 500), 3 the topic's terms, as the caller knows
--       them, 4 interval_us, 5 burst, 6 most unread (4 to 6 only if shaped)
-- Returns: {now_us, lateness of those promoted, 1 if more may be due, us to wait before that (if any)}.
-- Safe without a lease, because whether a job waits and is due is asked here, and it is removed in the same step: two
-- that promote at once cannot both find it. The lease only keeps nodes from doing the same work twice.
local delayed, jobs, ready, dead, rate, shards = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local hedge_ms, limit, terms = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
if (redis.call('GET', shards) or terms) ~= terms then return {now_us(), {0}, 0} end
local first = due_of(redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2])
if not first or first > now_ms() - hedge_ms then return {now_us(), {0}, 0} end
write_though_full(delayed)
local shape = {ARGV[4], ARGV[5], ARGV[6]}
local lateness, has_more, wait_us = sweep_due(delayed, jobs, ready, dead, rate, limit, shape)
return {now_us(), lateness, has_more, wait_us}
