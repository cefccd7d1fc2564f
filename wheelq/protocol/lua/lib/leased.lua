-- is_leased(ready, group, entry, generation): whether the delivery is pending, and is that one: each lease of an entry
-- has a number of its own, its count of deliveries, so that who leased it before cannot answer for who has it now.
local function is_leased(ready, group, entry, generation)
  local pending = redis.call('XPENDING', ready, group, entry, entry, 1)[1]
  return pending ~= nil and pending[4] == tonumber(generation)
end
