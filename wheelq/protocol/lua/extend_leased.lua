-- Let up to 500 leases end at another time, also at once.
-- uses: leased
-- KEYS: 1 ready
-- ARGV: 1 group, 2 consumer, 3 idle_ms to go on with (see lease.lua), then for each delivery: entry id, number of the
--       lease
-- Returns: for each, 1 done, 0 not leased so (any more): nothing was done.
-- JUSTID leaves the number of the lease alone.
local ready = KEYS[1]
local group, consumer, idle_ms = ARGV[1], ARGV[2], ARGV[3]
local reply = {}
for n = 4, #ARGV, 2 do
  local entry = ARGV[n]
  local is_theirs = is_leased(ready, group, entry, ARGV[n + 1])
  if is_theirs then redis.call('XCLAIM', ready, group, consumer, 0, entry, 'IDLE', idle_ms, 'JUSTID') end
  reply[#reply + 1] = is_theirs and 1 or 0
end
return reply
