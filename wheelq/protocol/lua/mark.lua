-- Write something that changes nothing, so that a WAIT behind it on this connection waits for all that came before.
-- uses: full
-- KEYS: 1 delayed
-- Returns: 0 (nothing to tell).
-- WAIT asks after the last write of its own connection, and from Redis 7.2 on it lets a connection through that has
-- written nothing: as after a schedule call that was repeated, and found its jobs already there.
-- Atomic, so that nobody sees the member; no job can have this id.
local delayed = KEYS[1]
write_though_full(delayed)
redis.call('ZADD', delayed, 0, '\31')
redis.call('ZREM', delayed, '\31')
return 0
