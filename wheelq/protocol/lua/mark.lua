-- Write something that changes nothing, so that a WAIT after it on this connection waits for all earlier writes.
-- uses: full
-- KEYS: 1 delayed
-- Returns: 0 (nothing to tell).
-- WAIT looks at the last write of its own connection. From Redis 7.2 on, it returns at once on a connection that has
-- written nothing, for instance after a repeated schedule call that found its jobs already there.
-- Atomic, so that no other client sees the member; no job can have this id.
local delayed = KEYS[1]
write_though_full(delayed)
redis.call('ZADD', delayed, 0, '\31')
redis.call('ZREM', delayed, '\31')
return 0
