-- Promote due jobs in place of a leader that fails to: without a lease, and only if the first is overdue for a while, or jobs
-- are held back for their keys.
-- uses: clock, full, head_parts, score, by, emit, lateness, retries, count, promote, shape, parts, unfinished, hint, stored, permits, held, key_limits, room, putting_back, writing_down, free_choice, choice, look_over, sweep_due, came
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 dead, 5 retries, 6 rate, 7 shards, 8 counts
-- ARGV: 1 hedge_ms the first job must be overdue, 2 most jobs (up to 500), 3 the topic's terms, as the caller knows
--       them, 4 interval_us, 5 burst, 6 most unread, 7 most permits of a key, 8 most promotions of a key a second
--       (0: no limit). A topic without limits needs only the first three
-- Returns: {now_us, lateness of those promoted, 1 if more may be due, us to wait before that (if any)}.
-- Safe without a lease, because this script checks that a job waits and is due, and removes it in the same step: two
-- nodes that promote at once cannot both find it. The lease only keeps nodes from doing the same work twice.
local delayed, jobs, ready, dead, retries = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local rate, shards, counts = KEYS[6], KEYS[7], KEYS[8]
local hedge_ms, limit, terms = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
if string.find(terms, 'paused', 1, true) or (redis.call('GET', shards) or terms) ~= terms then return {now_us(), {0}, 0} end
local first = tonumber(first_of(delayed))
local is_overdue = first and due_of(first) <= now_ms() - hedge_ms
if not is_overdue and held_in(delayed) == 0 then return {now_us(), {0}, 0} end
write_though_full(delayed)
local shape = {ARGV[4], ARGV[5], ARGV[6]}
local limits, look = limits_of(tonumber(ARGV[7] or 0), tonumber(ARGV[8] or 0)), {keys = {}, from = '', permit = ''}
local lateness, has_more, wait_us = sweep_due(delayed, jobs, ready, dead, retries, rate, limit, shape, counts, limits, look)
tell_came()
return {now_us(), lateness, has_more, wait_us}
