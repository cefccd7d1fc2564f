-- Store a value for a while, unless the key has one already.
-- KEYS: 1 note
-- ARGV: 1 value, 2 ttl_ms
-- Returns: the value that was there; false when there was none, and this one was stored.
-- One step, so that if several callers store at once, one succeeds and the others get its value.
local note = KEYS[1]
local text, ttl_ms = ARGV[1], ARGV[2]
local found = redis.call('GET', note)
if not found then redis.call('SET', note, text, 'PX', ttl_ms) end
return found
