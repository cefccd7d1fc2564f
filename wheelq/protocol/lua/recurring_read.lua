-- Look one recurring job up.
-- uses: clock, entry
-- KEYS: 1 recurring, 2 delayed
-- ARGV: 1 name
-- Returns: {now_us, what is stored for it ("" when it is not there), 1 if the occurrence made last still waits}.
local recurring, delayed = KEYS[1], KEYS[2]
local name = ARGV[1]
local stored = redis.call('HGET', recurring, name)
if not stored then return {now_us(), '', 0} end
local last = string.match(state_of(stored), '^%S+ (%S+)')
return {now_us(), stored, redis.call('ZSCORE', delayed, name .. '@' .. last) and 1 or 0}
