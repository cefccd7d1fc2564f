-- Give the lease back, so that another node can lead at once.
-- uses: hint
-- KEYS: 1 lease
-- ARGV: 1 token, 2 near channel, 3 message
-- Returns: 1 given back, 0 it was not the caller's (nothing changed).
-- The message, which names no job, tells nodes that wait for the lease that it is free, and may name the next leader.
local lease = KEYS[1]
local token, near, message = ARGV[1], ARGV[2], ARGV[3]
if redis.call('GET', lease) ~= token then return 0 end
redis.call('DEL', lease)
hint(near, message)
return 1
