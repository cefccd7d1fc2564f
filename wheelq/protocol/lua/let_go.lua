-- Give up a shard that this consumer holds, and pass it on to the consumer that asked for it, if there is one.
-- uses: clock
-- KEYS: 1 order
-- ARGV: 1 consumer, 2 successor or "", 3 lease_ms
-- Returns: 1 given up, 0 another consumer holds it.
local order = KEYS[1]
local consumer, successor, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('HGET', order, 'owner') ~= consumer then return 0 end
redis.call('HDEL', order, 'owner', 'until', 'asker', 'asks_until', 'asker_holds')
if successor ~= '' then redis.call('HSET', order, 'owner', successor, 'until', now_ms() + lease_ms) end
return 1
