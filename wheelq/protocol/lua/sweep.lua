-- Promote whatever is due, earliest first.
-- uses: clock, leader, emit, promote
-- KEYS: 1 lease, 2 delayed, 3 jobs, 4 ready, 5 dead
-- ARGV: 1 token, 2 lease_ms, 3 most jobs (up to 500)
-- Returns: {1, now_us, promoted, 1 if more may be due}; {0} not the leader.
local lease, delayed, jobs, ready, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, lease_ms, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not leads(lease, token, lease_ms) then return {0} end
local found = redis.call('ZRANGEBYSCORE', delayed, '-inf', now_ms(), 'WITHSCORES', 'LIMIT', 0, limit)
local members, dues = {}, {}
for n = 1, #found, 2 do
  members[#members + 1] = found[n]
  dues[#dues + 1] = found[n + 1]
end
local promoted, is_all = promote_all(delayed, jobs, ready, dead, members, dues)
return {1, now_us(), promoted, (#members == limit or not is_all) and 1 or 0}
