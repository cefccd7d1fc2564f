-- Show a standby the state of a shard.
-- uses: clock
-- KEYS: 1 lease, 2 delayed, 3 horizon
-- Returns: {now_us, score of the first waiting job or "", token of the leader or "", ms left of its lease, horizon or ""}.
-- Every call of a leader prolongs the lease, so the time left shows how long the leader has been quiet.
local lease, delayed, horizon = KEYS[1], KEYS[2], KEYS[3]
return {now_us(), redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2] or '', redis.call('GET', lease) or '',
  redis.call('PTTL', lease), redis.call('GET', horizon) or ''}
