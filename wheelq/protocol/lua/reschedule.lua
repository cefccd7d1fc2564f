-- Give a waiting job a new due time.
-- uses: clock
-- KEYS: 1 delayed, 2 jobs, 3 horizon
-- ARGV: 1 near channel, 2 id, 3 due ("+ms" from now, or "ms" since the epoch)
-- Returns: {1 rescheduled, new due_ms}, {2 too late (promoted), 0}, {0 not found, 0}.
-- Atomic, so that the answer is true. The leader is rung when the new time lies in what it has loaded; where the job
-- stood before, its promotion finds it not due and passes it over.
local delayed, jobs, horizon = KEYS[1], KEYS[2], KEYS[3]
local near, id, due = ARGV[1], ARGV[2], ARGV[3]
if not redis.call('ZSCORE', delayed, id) then
  return {redis.call('HEXISTS', jobs, id) == 1 and 2 or 0, 0}
end
due = due_ms(due)
redis.call('ZADD', delayed, due, id)
if due <= tonumber(redis.call('GET', horizon) or -1) then
  redis.call('PUBLISH', near, string.format('%.0f %s', due, id))
end
return {1, due}
