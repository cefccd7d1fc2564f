-- Prolong the leases of many shards, and name those in which a job waits that is due before all jobs that the leader knows.
-- uses: score, leader
-- KEYS: for each shard 2: lease, delayed
-- ARGV: 1 lease_ms, then for each shard: token ("": the lease is not to be prolonged), the ms before which it knows of no job
-- Returns: the places, from 0 on, of those shards, and of the shards whose lease is not the caller's any more.
local found, lease_ms = {}, ARGV[1]
for n = 1, #KEYS / 2 do
  local lease, delayed = KEYS[2 * n - 1], KEYS[2 * n]
  local token, known_ms = ARGV[2 * n], tonumber(ARGV[2 * n + 1])
  local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2]
  local is_missed = first and due_of(first) < known_ms and not is_held(tonumber(first))
  if (token ~= '' and not leads(lease, token, lease_ms)) or is_missed then found[#found + 1] = n - 1 end
end
return found
