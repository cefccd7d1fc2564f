-- Let a standby see how a shard is doing.
-- uses: clock
-- KEYS: 1 lease, 2 delayed
-- Returns: {now_us, score of the first waiting job or "", token of the leader or "", ms left of its lease}.
-- Every call of a leader prolongs the lease, so what is left of it tells how long the leader has been quiet.
local lease, delayed = KEYS[1], KEYS[2]
return {now_us(), redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2] or '', redis.call('GET', lease) or '',
  redis.call('PTTL', lease)}
