-- Let a shard take new jobs only from producers that know the topic's new number of shards.
-- KEYS: 1 shards, 2 delayed
-- ARGV: 1 the topic's number of shards
-- Returns: due_ms of the last job that waits here; "0" when none does.
-- From then on nothing comes here by an older way of choosing shards, so what such producers put here only gets less.
local shards, delayed = KEYS[1], KEYS[2]
redis.call('SET', shards, ARGV[1])
return redis.call('ZREVRANGE', delayed, 0, 0, 'WITHSCORES')[2] or '0'
