-- Let a shard stay at rest, without a leader, if there is nothing to do in it.
-- uses: clock, full, score, record, any_outgoing
-- KEYS: 1 lease, 2 horizon, 3 delayed, 4 shards, 5 ready, 6 ended, 7 counts, 8 history, 9 outgoing, 10 held, 11 permits
-- ARGV: 1 the topic's terms, as the caller knows them, 2 window_ms, 3 idle_ms, 4 hour of the history (see record)
-- Returns: {1, now_us, horizon, 1 if followers are outgoing}: nothing is due within the window, there is nothing to tidy, no
--          node leads, and the horizon was moved on as by `open_window`; {0, now_us}: there is something to do, which
--          needs the lease.
-- No lease is needed here: no waiting job is before the new horizon, and one that is scheduled before it sends a hint.
-- This call is all that a shard at rest costs its leader.
local lease, horizon, delayed, shards, ready, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local counts, history, outgoing, held, permits, hour = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], ARGV[4]
local terms, window_ms, idle_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now, to = now_ms(), now_ms() + idle_ms
local first = due_of(redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2])
if (first and first <= now + window_ms) or redis.call('EXISTS', lease, ended, held, permits) > 0 then return {0, now_us()} end
if redis.call('XLEN', ready) > 0 or (redis.call('GET', shards) or terms) ~= terms then return {0, now_us()} end
if first and first <= to then to = first - 1 end
write_though_full(horizon)
redis.call('SET', horizon, string.format('%.0f', to))
record(counts, history, hour, now)
return {1, now_us(), string.format('%.0f', to), any_outgoing(outgoing)}
