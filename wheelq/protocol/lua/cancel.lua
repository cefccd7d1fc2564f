-- Cancel a waiting job.
-- uses: tell, count
-- KEYS: 1 delayed, 2 jobs, 3 news, 4 counts (may be left out)
-- ARGV: 1 id
-- Returns: 1 cancelled, 2 too late (promoted), 0 not found.
-- Atomic, so that a job is either cancelled or promoted, never both. The leader's wheel may still hold the id; its
-- promotion finds no score and skips it. Callers that wait for a job of this shard are notified.
local delayed, jobs, news, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id = ARGV[1]
if redis.call('ZREM', delayed, id) == 1 then
  redis.call('HDEL', jobs, id)
  tell_ended(news, {id})
  count(counts, 'cancelled\31', 1)
  return 1
end
return redis.call('HEXISTS', jobs, id) == 1 and 2 or 0
