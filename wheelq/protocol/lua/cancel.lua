-- Cancel a waiting job.
-- KEYS: 1 delayed, 2 jobs
-- ARGV: 1 id
-- Returns: 1 cancelled, 2 too late (promoted), 0 not found.
-- Atomic, so that a job is either cancelled or promoted, never both. The leader's wheel may still hold the id; its
-- promotion finds no score and passes it over.
local delayed, jobs = KEYS[1], KEYS[2]
local id = ARGV[1]
if redis.call('ZREM', delayed, id) == 1 then
  redis.call('HDEL', jobs, id)
  return 1
end
return redis.call('HEXISTS', jobs, id) == 1 and 2 or 0
