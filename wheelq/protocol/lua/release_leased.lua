-- Give up to 500 leases back, so that other consumers get the deliveries, at once or after a pause.
-- uses: leased, count
-- KEYS: 1 ready, 2 counts
-- ARGV: 1 group, 2 consumer that has the leases, 3 consumer that gets what is given back, 4 moment to date them at (see
--       lease.lua), 5 how many deliveries the lease counts for (0: it does not count), then for each delivery: entry id,
--       number of the lease
-- Returns: for each, 1 done, 0 this lease is over or was never given: nothing was done.
-- Because another consumer owns the delivery from now on, the handle of the lease is invalid.
local ready, counts = KEYS[1], KEYS[2]
local group, consumer, unleased, begun_ms, runs = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local reply, released = {}, 0
for n = 6, #ARGV, 2 do
  local entry, number = ARGV[n], ARGV[n + 1]
  local is_theirs = is_leased(ready, group, consumer, entry, number)
  if is_theirs then
    local deliveries = number - 1 + runs
    redis.call('XCLAIM', ready, group, unleased, 0, entry, 'TIME', begun_ms, 'RETRYCOUNT', deliveries, 'JUSTID')
    released = released + runs
  end
  reply[#reply + 1] = is_theirs and 1 or 0
end
count(counts, 'retried\31' .. group, released)
return reply
