-- How many jobs a shard holds.
-- uses: clock
-- KEYS: 1 delayed, 2 ready, 3 dead
-- Returns: {delayed, ready, dead, score of the first or "", now_us}.
-- One step, so that a job that is promoted meanwhile is counted once.
local delayed, ready, dead = KEYS[1], KEYS[2], KEYS[3]
return {
  redis.call('ZCARD', delayed), redis.call('XLEN', ready), redis.call('XLEN', dead),
  redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2] or '', now_us(),
}
