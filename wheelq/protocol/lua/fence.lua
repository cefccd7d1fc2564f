-- Let a shard be written to only by those who know the topic's new terms: producers, and whoever leads it.
-- uses: full
-- KEYS: 1 shards, 2 delayed, 3 lease
-- ARGV: 1 the topic's terms, which begin with its number of shards
-- Returns: due_ms of the last job that waits here; "0" when none does.
-- From then on nothing comes here by an older way of choosing shards, so what such producers put here only gets less.
-- The lease is taken from a leader that knew other terms: it has to come back with the new ones. (By SET, because
-- producers may not DEL.)
local shards, delayed, lease = KEYS[1], KEYS[2], KEYS[3]
if redis.call('GET', shards) ~= ARGV[1] then
  write_though_full(delayed)
  redis.call('SET', shards, ARGV[1])
  if redis.call('GET', lease) then redis.call('SET', lease, '', 'PX', 1) end
end
return redis.call('ZRANGE', delayed, -1, -1, 'WITHSCORES')[2] or '0'
