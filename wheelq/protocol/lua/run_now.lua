-- Promote one waiting job now, before its due time.
-- uses: clock, primary, full, score, emit, lateness, retries, count, promote, hint, came
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 dead, 5 shards, 6 counts (may be left out)
-- ARGV: 1 id
-- Returns: 1 promoted, 2 promoted before, 0 not found, -1 the stream refused it (it stays waiting), 3 the topic is
--          paused: the job keeps waiting, and is due now.
-- Its due time becomes now, so that no worker sees a job that ran early.
local delayed, jobs, ready, dead, shards, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local id = ARGV[1]
if not redis.call('ZSCORE', delayed, id) then
  only_on_primary(delayed)
  return redis.call('HEXISTS', jobs, id) == 1 and 2 or 0
end
write_though_full(ready)
if string.find(redis.call('GET', shards) or '', 'paused', 1, true) then
  redis.call('ZADD', delayed, now_ms(), id)
  return 3
end
local promoted = promote_all(delayed, jobs, ready, dead, nil, {id}, {now_ms()}, counts)
tell_came()
return promoted == 1 and 1 or -1
