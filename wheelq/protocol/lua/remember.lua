-- Write something down for a while, unless something is written there already.
-- KEYS: 1 note
-- ARGV: 1 what to write, 2 ttl_ms
-- Returns: what was there; false when nothing was, and this was written.
-- One step, so that of several who write at once one is first and the others are told what it wrote.
local note = KEYS[1]
local text, ttl_ms = ARGV[1], ARGV[2]
local found = redis.call('GET', note)
if not found then redis.call('SET', note, text, 'PX', ttl_ms) end
return found
