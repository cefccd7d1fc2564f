-- Take the lease of a shard, or take it over from a holder known to be gone.
-- uses: clock
-- KEYS: 1 lease, 2 epoch, 3 shards
-- ARGV: 1 node id, 2 "server run id:client id" of the caller, 3 lease_ms, 4 token that may be replaced ("" = none),
--       5 the topic's terms, as the caller knows them
-- Returns: {1, token, now_us} taken; {0, token of the holder, now_us, ms left of its lease} held by another;
--          {2, "", now_us} other terms are in force: nobody leads who does not know them.
-- A node finds a lease of its own after a lost reply, and takes it again: the older token is dead from then on.
-- The epoch is greater than every earlier one, also after a failover to a replica that missed some: it is not below
-- the server's clock. The DEL comes first because a server that is out of memory refuses a script whose first write
-- needs memory, and lets one go on that has written (even nothing).
local lease, epoch, shards = KEYS[1], KEYS[2], KEYS[3]
local node, connection, lease_ms, replaceable, terms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if (redis.call('GET', shards) or terms) ~= terms then return {2, '', now_us()} end
local held = redis.call('GET', lease)
if held and held ~= replaceable and string.sub(held, 1, #node + 1) ~= node .. ':' then
  return {0, held, now_us(), redis.call('PTTL', lease)}
end
redis.call('DEL', lease)
local next_epoch = math.max(tonumber(redis.call('GET', epoch) or 0) + 1, now_ms())
next_epoch = string.format('%.0f', next_epoch)
redis.call('SET', epoch, next_epoch)
local token = node .. ':' .. next_epoch .. ':' .. connection
redis.call('SET', lease, token, 'PX', lease_ms)
return {1, token, now_us()}
