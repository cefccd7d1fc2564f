-- Let up to 500 leases end at another time, or at once.
-- uses: leased
-- KEYS: 1 ready
-- ARGV: 1 group, 2 consumer, 3 moment to date them at (see lease.lua), then for each delivery: entry id, number of the
--       lease
-- Returns: for each, 1 done, 0 this lease is over or was never given: nothing was done.
-- JUSTID leaves the number of the lease alone.
local ready = KEYS[1]
local group, consumer, begun_ms = ARGV[1], ARGV[2], ARGV[3]
local reply = {}
for n = 4, #ARGV, 2 do
  local entry = ARGV[n]
  local is_theirs = is_leased(ready, group, consumer, entry, ARGV[n + 1])
  if is_theirs then redis.call('XCLAIM', ready, group, consumer, 0, entry, 'TIME', begun_ms, 'JUSTID') end
  reply[#reply + 1] = is_theirs and 1 or 0
end
return reply
