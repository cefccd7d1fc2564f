-- owns(ready, group, consumer, entry): whether the delivery is pending and this consumer's.
-- XACK and XCLAIM take no owner: without the look, a worker that was frozen and robbed would answer for its successor.
local function owns(ready, group, consumer, entry)
  local pending = redis.call('XPENDING', ready, group, entry, entry, 1)[1]
  return pending ~= nil and pending[2] == consumer
end
