-- Say that a scheduler node lives, also on a server that is out of memory, where scheduling must go on.
-- uses: full
-- KEYS: 1 nodes
-- ARGV: 1 node, 2 what it says of itself
-- Returns: 0 (nothing to tell).
local nodes = KEYS[1]
local node, what = ARGV[1], ARGV[2]
write_though_full(nodes)
redis.call('HSET', nodes, node, what)
return 0
