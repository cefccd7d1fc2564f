-- Move the horizon on and read what is due up to it.
-- uses: clock, leader, score
-- KEYS: 1 lease, 2 horizon, 3 delayed
-- ARGV: 1 token, 2 lease_ms, 3 horizon the leader has loaded to ("" = nothing), 4 window_ms, 5 most ids, 6 idle_ms
-- Returns: {1, now_us, horizon, 1 if more are due within the window, id, score, id, score, ...}; {0} not the leader.
-- Atomic, so that nothing falls between: what was scheduled before is in the answer, what is scheduled after sees the
-- new horizon and rings. With nothing in the window the horizon goes to just before the next job, so that an idle
-- shard can sleep; a job scheduled before that rings. When there are too many, the horizon stops before the last due
-- time read, because that one may be read in part only.
local lease, horizon, delayed = KEYS[1], KEYS[2], KEYS[3]
local token, lease_ms, loaded_to = ARGV[1], ARGV[2], ARGV[3]
local window_ms, limit, idle_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
if not leads(lease, token, lease_ms) then return {0} end
local now = now_ms()
local to = now + window_ms
-- Another leader may have moved the horizon since: then what this one has loaded says nothing. And where the horizon is
-- brought back from far, jobs have been scheduled before it whose rings may have been lost.
local from = '-inf'
if loaded_to ~= '' and tonumber(loaded_to) < to and redis.call('GET', horizon) == loaded_to then from = string.format('(%.1f', by(loaded_to)) end
local found = redis.call('ZRANGEBYSCORE', delayed, from, by(to), 'WITHSCORES', 'LIMIT', 0, limit)
local reply = {1, now_us(), 0, 0}
for n = 1, #found do reply[n + 4] = found[n] end
if #found == 2 * limit then
  to = due_of(found[#found]) - 1
  reply[4] = 1
elseif #found == 0 then
  local next_due = redis.call('ZRANGEBYSCORE', delayed, string.format('(%.1f', by(to)), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local idle_to = now + idle_ms
  to = math.max(to, next_due and math.min(due_of(next_due) - 1, idle_to) or idle_to)
end
reply[3] = string.format('%.0f', to)
redis.call('SET', horizon, reply[3])
return reply
