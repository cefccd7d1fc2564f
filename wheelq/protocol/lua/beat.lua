-- Write a scheduler node's heartbeat, even if the server is out of memory, because scheduling must go on then.
-- uses: clock, full
-- KEYS: 1 nodes
-- ARGV: 1 node, 2 its description
-- Returns: now_us, which tells the caller the server's time.
local nodes = KEYS[1]
local node, what = ARGV[1], ARGV[2]
write_though_full(nodes)
redis.call('HSET', nodes, node, what)
return now_us()
