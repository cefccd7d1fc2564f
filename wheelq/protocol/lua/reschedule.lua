-- Give a waiting job a new due time.
-- uses: clock, score
-- KEYS: 1 delayed, 2 jobs, 3 horizon
-- ARGV: 1 near channel, 2 id, 3 due ("+ms" from now, or "ms" since the epoch), 4 only if it is due then (ms), or ""
-- Returns: {1 rescheduled, new due_ms}, {2 too late (promoted), 0}, {3 it has another due time than in 4, that due_ms},
--          {0 not found, 0}.
-- Atomic, so that the answer is true. The leader is rung when the new time lies in what it has loaded; where the job
-- stood before, its promotion finds it not due and passes it over.
local delayed, jobs, horizon = KEYS[1], KEYS[2], KEYS[3]
local near, id, due, only_if_due = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local score = redis.call('ZSCORE', delayed, id)
local stands = due_of(score)
if not stands then
  return {redis.call('HEXISTS', jobs, id) == 1 and 2 or 0, 0}
end
if only_if_due ~= '' and stands ~= tonumber(only_if_due) then return {3, stands} end
due = due_ms(due)
redis.call('ZADD', delayed, score_of(due, score - stands), id) -- of the same priority
if due <= tonumber(redis.call('GET', horizon) or -1) then
  redis.call('PUBLISH', near, string.format('%.0f %s', due, id))
end
return {1, due}
