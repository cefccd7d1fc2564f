-- Show a standby the state of a shard.
-- uses: clock, score, held, any_outgoing
-- KEYS: 1 lease, 2 delayed, 3 horizon, 4 outgoing
-- Returns: {now_us, score of the first waiting job that is not held back or "", token of the leader or "", ms left of its lease,
--          horizon or "", 1 if followers are outgoing, how many jobs are held back}.
-- Every call of a leader prolongs the lease, so the time left shows how long the leader has been quiet.
local lease, delayed, horizon, outgoing = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
return {now_us(), first_of(delayed), redis.call('GET', lease) or '',
  redis.call('PTTL', lease), redis.call('GET', horizon) or '', any_outgoing(outgoing), held_in(delayed)}
