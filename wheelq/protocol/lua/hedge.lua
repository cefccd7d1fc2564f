-- Promote what is due in place of a leader that does not: without a lease, and only what has been overdue for a while.
-- uses: clock, full, emit, promote
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 dead
-- ARGV: 1 hedge_ms the first job must be overdue, 2 most jobs (up to 500)
-- Returns: {now_us, promoted, 1 if more may be due}.
-- Safe without a lease, because whether a job waits and is due is asked here, and it is removed in the same step: two
-- that promote at once cannot both find it. The lease only keeps nodes from doing the same work twice.
local delayed, jobs, ready, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local hedge_ms, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local now = now_ms()
local found = redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
if #found == 0 or tonumber(found[2]) > now - hedge_ms then return {now_us(), 0, 0} end
write_though_full(delayed)
local members, dues = {}, {}
for n = 1, #found, 2 do
  members[#members + 1] = found[n]
  dues[#dues + 1] = found[n + 1]
end
local promoted, is_all = promote_all(delayed, jobs, ready, dead, members, dues)
return {now_us(), promoted, #members == limit and is_all and 1 or 0}
