-- Let a shard take members of a bundle, unless it was shut, or the topic has given it up.
-- uses: full
-- KEYS: 1 bundles, 2 shards, 3 jobs
-- ARGV: 1 bundle, 2 number of this shard
-- Returns: 1 it takes members from now on, 0 it has, or did before, or takes none.
-- A producer that does not know of the change yet would leave the bundle in a shard at which nobody looks any more.
local bundles, shards, jobs = KEYS[1], KEYS[2], KEYS[3]
local bundle, number = ARGV[1], tonumber(ARGV[2])
write_though_full(bundles)
local in_force = tonumber(string.match(redis.call('GET', shards) or '', '^%d+'))
if in_force and number >= in_force and redis.call('HLEN', jobs) == 0 then return 0 end
return redis.call('HSETNX', bundles, bundle, '0 0 0 0 0 open')
