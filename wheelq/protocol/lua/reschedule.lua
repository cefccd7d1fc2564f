-- Give a waiting job a new due time.
-- uses: clock, primary, score, hint, horizon, hint_due, life
-- KEYS: 1 delayed, 2 jobs, 3 horizon
-- ARGV: 1 near channel, 2 id, 3 due ("+ms" from now, or "ms" since the epoch), 4 only if it is due then (ms), or "",
--       5 the life of the job that is meant, or "" for any (may be left out), 6 the last ms by the server's clock at which
--       to do this (may be left out)
-- Returns: {1 rescheduled, new due_ms}, {2 too late (promoted), 0}, {3 its due time is not that of 4, but this due_ms, or it
--          is later than 6}, {0 not found, 0}.
-- Atomic, so that the answer is true. The leader gets a hint if the new time is before its horizon. If its wheel still
-- holds the old time, its promotion finds the job not due and skips it.
local delayed, jobs, horizon = KEYS[1], KEYS[2], KEYS[3]
local near, id, due, only_if_due, life = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] or ''
if life ~= '' and life_of(redis.call('HGET', jobs, id) or '') ~= life then return {0, 0} end
local score = redis.call('ZSCORE', delayed, id)
local stands = due_of(score)
if not stands then
  only_on_primary(delayed)
  return {redis.call('HEXISTS', jobs, id) == 1 and 2 or 0, 0}
end
local is_over = ARGV[6] and now_ms() > tonumber(ARGV[6])
if is_over or only_if_due ~= '' and stands ~= tonumber(only_if_due) then
  only_on_primary(delayed)
  return {3, stands}
end
due = due_ms(due)
redis.call('ZADD', delayed, score_of(due, unheld(tonumber(score)) - stands), id) -- of the same priority
hint_due(near, horizon, due, id)
return {1, due}
