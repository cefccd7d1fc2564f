-- Give the lease back, so that another node can lead at once.
-- KEYS: 1 lease
-- ARGV: 1 token
-- Returns: 1 given back, 0 it was not the caller's (nothing changed).
local lease = KEYS[1]
local token = ARGV[1]
if redis.call('GET', lease) ~= token then return 0 end
return redis.call('DEL', lease)
