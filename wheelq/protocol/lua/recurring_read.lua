-- Look one recurring job up.
-- uses: clock, primary, entry
-- KEYS: 1 recurring, 2 delayed
-- ARGV: 1 name, 2 "1" if the caller wants to change it: then a replica must not answer
-- Returns: {now_us, its stored definition and state ("" when it is not there), 1 if the last occurrence made still waits}.
local recurring, delayed = KEYS[1], KEYS[2]
local name = ARGV[1]
if ARGV[2] == '1' then only_on_primary(recurring) end
local stored = redis.call('HGET', recurring, name)
if not stored then return {now_us(), '', 0} end
local last = string.match(state_of(stored), '^%S+ (%S+)')
local is_waiting = last and redis.call('ZSCORE', delayed, name .. '@' .. last) -- what another program wrote may name none
return {now_us(), stored, is_waiting and 1 or 0}
