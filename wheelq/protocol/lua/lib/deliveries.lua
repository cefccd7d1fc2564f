-- Deliveries: which consumer owns one.

-- part: owned
-- owns(ready, group, consumer, entry, lease): whether the delivery is pending and this consumer's; with the number of a
-- lease, also whether it is that lease (see is_leased).
-- XACK and XCLAIM do not check the owner: without this, a frozen worker that wakes up would acknowledge a delivery that
-- another worker has taken over.
local function owns(ready, group, consumer, entry, lease)
  local pending = redis.call('XPENDING', ready, group, entry, entry, 1)[1]
  return pending ~= nil and pending[2] == consumer and (not lease or pending[4] == tonumber(lease))
end

-- part: leased
-- is_leased(ready, group, consumer, entry, number): whether the delivery is under the lease of this number. Each lease of
-- an entry has its own number, the count of deliveries, so that an old handle cannot answer for a later lease.
local function is_leased(ready, group, consumer, entry, number)
  local pending = redis.call('XPENDING', ready, group, entry, entry, 1)[1]
  return pending ~= nil and pending[2] == consumer and pending[4] == tonumber(number)
end
