-- Move the horizon on, and read the jobs that are due before it.
-- uses: clock, leader, score, by, record, any_outgoing
-- KEYS: 1 lease, 2 horizon, 3 delayed, 4 ready, 5 ended, 6 counts, 7 history, 8 outgoing
-- ARGV: 1 token, 2 lease_ms, 3 horizon the leader has loaded to ("" = nothing), 4 window_ms, 5 most ids, 6 idle_ms,
--       7 hour of the history (see record)
-- Returns: {1, now_us, horizon, 1 if more are due within the window, 1 if there may be something to tidy plus 2 if
--          followers are outgoing, id, score, id, score, ...}; {0} not the leader.
-- Atomic, so that no job is missed: one scheduled before is in the answer, and one scheduled after sees the new horizon
-- and sends the leader a hint. If nothing is due in the window, the horizon moves to just before the next job, so that an
-- idle shard can sleep; a job scheduled before that sends a hint. If there are too many jobs, the horizon stops before
-- the last due time read, because only part of the jobs due then may have been read.
local lease, horizon, delayed, ready, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local counts, history, outgoing, hour = KEYS[6], KEYS[7], KEYS[8], ARGV[7]
local token, lease_ms, loaded_to = ARGV[1], ARGV[2], ARGV[3]
local window_ms, limit, idle_ms = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
if not leads(lease, token, lease_ms) then return {0} end
local now = now_ms()
local to = now + window_ms
-- If another leader has moved the horizon since, this one cannot rely on what it has loaded. And if the horizon was far
-- ahead, the hints of jobs scheduled before it may have been lost.
local from = '-inf'
if loaded_to ~= '' and tonumber(loaded_to) < to and redis.call('GET', horizon) == loaded_to then from = string.format('(%.1f', by(loaded_to)) end
local found = redis.call('ZRANGEBYSCORE', delayed, from, by(to), 'WITHSCORES', 'LIMIT', 0, limit)
local has_kept = redis.call('EXISTS', ended) == 1 or redis.call('XLEN', ready) > 0
local reply = {1, now_us(), 0, 0, (has_kept and 1 or 0) + 2 * any_outgoing(outgoing)}
for n = 1, #found do reply[n + 5] = found[n] end
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
record(counts, history, hour, now)
return reply
