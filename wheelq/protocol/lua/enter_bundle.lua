-- Let a shard take members of a bundle, unless it was shut.
-- uses: full
-- KEYS: 1 bundles
-- ARGV: 1 bundle
-- Returns: 1 it takes members from now on, 0 it has, or did before.
local bundles, bundle = KEYS[1], ARGV[1]
write_though_full(bundles)
return redis.call('HSETNX', bundles, bundle, '0 0 0 0 0 open')
