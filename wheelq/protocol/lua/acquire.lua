-- Take the lease of a shard, or take it over from a holder known to be gone.
-- uses: clock, count
-- KEYS: 1 lease, 2 epoch, 3 shards, 4 counts
-- ARGV: 1 node id, 2 "server run id:client id" of the caller, 3 lease_ms, 4 token that may be replaced ("" = none),
--       5 the topic's terms, as the caller knows them
-- Returns: {1, token, now_us} taken; {0, token of the holder, now_us, ms left of its lease} held by another;
--          {2, "", now_us} other terms are in force: only a node that knows them may lead.
-- After a lost reply, a node finds its own lease and takes it again; the older token is invalid from then on.
-- The epoch is greater than every earlier one, even after a failover to a replica that missed some, because it is at
-- least the server's time. The DEL comes first because a server that is out of memory refuses a script whose first write
-- needs memory, but lets a script go on that has written something, even nothing.
local lease, epoch, shards, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local node, connection, lease_ms, replaceable, terms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if (redis.call('GET', shards) or terms) ~= terms then return {2, '', now_us()} end
local held = redis.call('GET', lease)
local left_ms = held and redis.call('PTTL', lease) -- negative: another program wrote it, and it would never end
if held and held ~= replaceable and string.sub(held, 1, #node + 1) ~= node .. ':' and left_ms >= 0 then
  return {0, held, now_us(), left_ms}
end
redis.call('DEL', lease)
local next_epoch = (tonumber(redis.call('GET', epoch) or 0) or 0) + 1
if not (next_epoch > now_ms() and next_epoch < 2 ^ 53) then next_epoch = now_ms() end
next_epoch = string.format('%.0f', next_epoch)
redis.call('SET', epoch, next_epoch)
local token = node .. ':' .. next_epoch .. ':' .. connection
redis.call('SET', lease, token, 'PX', lease_ms)
if counts and redis.pcall('HGET', counts, 'leader') ~= node then
  redis.pcall('HSET', counts, 'leader', node)
  count(counts, 'led', 1)
end
return {1, token, now_us()}
