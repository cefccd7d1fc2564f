-- Cancel a waiting job, and the one that waits under the second id of a debounced key.
-- uses: clock, life, stored, head_parts, again, debounce, hint, tell, count, outgoing, bundles
-- KEYS: 1 delayed, 2 jobs, 3 news, 4 counts, 5 ready, 6 bundles, 7 outgoing (4 to 7 may be left out)
-- ARGV: 1 id, 2 the life of the job that is meant, or "" for any (may be left out): with it, no second one,
--       3 near channel (only with 6 and 7)
-- Returns: 1 cancelled, 2 too late (promoted), 0 not found: of the job with the id; if there is none, of the second.
-- Atomic, so that a job is either cancelled or promoted, never both. The leader's wheel may still hold the id; its
-- promotion finds no score and skips it. Callers that wait for a job of this shard are notified.
local delayed, jobs, news, counts, ready = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local bundles, outgoing, near = KEYS[6], KEYS[7], ARGV[3]
local life = ARGV[2] or ''
if life ~= '' and life_of(redis.call('HGET', jobs, ARGV[1]) or '') ~= life then return 0 end
local function cancel(id)
  local record = bundles and redis.call('HGET', jobs, id) or ''
  if redis.call('ZREM', delayed, id) == 1 then
    redis.call('HDEL', jobs, id)
    if bundle_of(record) then count_ends(bundles, outgoing, near, {{life_of(record), 'cancelled'}}) end
    tell_ended(news, {id})
    count(counts, 'cancelled\31', 1)
    return 1
  end
  return redis.call('HEXISTS', jobs, id) == 1 and 2 or 0
end
local second = life == '' and ready and second_of(jobs, ready, ARGV[1])
local outcome, its_outcome = cancel(ARGV[1]), second and cancel(second) or 0
return outcome ~= 0 and outcome or its_outcome
