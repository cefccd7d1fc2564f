-- Promote one waiting job now, before its due time.
-- uses: clock, primary, full, head_parts, score, by, emit, lateness, retries, count, promote, parts, unfinished, hint, permits, key_limits, room, putting_back, writing_down, choice, came
-- KEYS: 1 delayed, 2 jobs, 3 ready, 4 dead, 5 shards, 6 counts (may be left out)
-- ARGV: 1 id, 2 the topic's terms, as the caller knows them: they are in force unless the shard has others (may be left out)
-- Returns: 1 promoted, 2 promoted before, 0 not found, -1 the stream refused it (it stays waiting), 3 the topic is
--          paused: the job keeps waiting, and is due now, 4 its key is at its limit: the same, and it goes before the others.
-- Its due time becomes now, so that no worker sees a job that ran early; in a paused topic, if it was not due before.
local delayed, jobs, ready, dead, shards, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local id = ARGV[1]
if not redis.call('ZSCORE', delayed, id) then
  only_on_primary(delayed)
  return redis.call('HEXISTS', jobs, id) == 1 and 2 or 0
end
write_though_full(ready)
local terms = redis.call('GET', shards) or ARGV[2] or ''
if string.find(terms, 'paused', 1, true) then
  local its = tonumber(redis.call('ZSCORE', delayed, id))
  local stands = due_of(its)
  redis.call('ZADD', delayed, score_of(math.min(stands, now_ms()), unheld(its) - stands), id) -- of the same priority
  return 3
end
local limits, key = limits_in(terms), key_of(redis.call('HGET', jobs, id))
local chosen = limits and key and choice(delayed, jobs, nil, limits, 1, limit_keys(ready))
if chosen then chosen.run_next(id, now_ms(), key) end
local is_held_back = chosen and #chosen.members == 0
local promoted = is_held_back and 0 or promote_all(delayed, jobs, ready, dead, nil, {id}, {now_ms()}, counts, chosen and chosen.note)
if chosen then chosen.keep() end
if is_held_back then return 4 end
tell_came()
return promoted == 1 and 1 or -1
