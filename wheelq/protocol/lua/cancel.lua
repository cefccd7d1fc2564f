-- Cancel a waiting job.
-- uses: tell
-- KEYS: 1 delayed, 2 jobs, 3 news
-- ARGV: 1 id
-- Returns: 1 cancelled, 2 too late (promoted), 0 not found.
-- Atomic, so that a job is either cancelled or promoted, never both. The leader's wheel may still hold the id; its
-- promotion finds no score and passes it over. Who waits for a job of this shard is told.
local delayed, jobs, news = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]
if redis.call('ZREM', delayed, id) == 1 then
  redis.call('HDEL', jobs, id)
  tell_ended(news, {id})
  return 1
end
return redis.call('HEXISTS', jobs, id) == 1 and 2 or 0
