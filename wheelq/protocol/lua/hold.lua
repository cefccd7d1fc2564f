-- Hold a shard for one consumer of a group, so that its jobs run in order: take the lease or renew it, and take over
-- what other consumers left behind.
-- uses: clock, full
-- KEYS: 1 ready, 2 order
-- ARGV: 1 group, 2 consumer, 3 lease_ms, 4 abandoned_ms, 5 shards that the consumer holds, 6 "1" to be told of its own
--       deliveries too, then up to 500 entry ids that are finished: what is kept of their next run is forgotten
-- Returns: {0, ms}: another consumer holds it for so long, and is told that this one asks for it; or
--          {1, now_us, busy, asker or "", shards that the asker holds, entry id, ...}: the deliveries taken over.
--          busy 1: others still have deliveries that they renew; nothing may start before these are done.
-- One step, so that a shard never has two holders. JUSTID leaves the delivery counter to `adopt`.
local ready, order = KEYS[1], KEYS[2]
local group, consumer, lease_ms, abandoned_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local holds, tells_own = tonumber(ARGV[5]), ARGV[6] == '1'
local MOST_FOREIGN = 500
local now = now_ms()
local known = redis.call('HMGET', order, 'owner', 'until', 'asker', 'asks_until', 'asker_holds')
local asker = known[3] and tonumber(known[4]) > now and known[3] or ''
write_though_full(ready)
if known[1] and known[1] ~= consumer and tonumber(known[2]) > now then
  if asker == '' or asker == consumer or holds < tonumber(known[5]) then
    redis.call('HSET', order, 'asker', consumer, 'asks_until', now + lease_ms, 'asker_holds', holds)
  end
  return {0, tonumber(known[2]) - now}
end
redis.call('HSET', order, 'owner', consumer, 'until', now + lease_ms)
if #ARGV > 6 then redis.call('HDEL', order, unpack(ARGV, 7)) end
if asker == consumer then asker = '' end

local pending = redis.call('XPENDING', ready, group)
local all, own, claimed = pending[1], 0, 0
for _, holder in ipairs(pending[4] or {}) do
  if holder[1] == consumer then own = tonumber(holder[2]) end
end
local reply = {1, now_us(), 0, asker, tonumber(asker ~= '' and known[5] or 0)}
if all > own or (tells_own and all > 0) then
  local args = {ready, group, consumer, 0}
  for _, one in ipairs(redis.call('XPENDING', ready, group, '-', '+', own + MOST_FOREIGN)) do
    local is_own = one[2] == consumer
    if not is_own and one[3] >= abandoned_ms then args[#args + 1] = one[1] end
    if (is_own and tells_own) or (not is_own and one[3] >= abandoned_ms) then reply[#reply + 1] = one[1] end
  end
  claimed = #args - 4
  args[#args + 1] = 'JUSTID'
  if claimed > 0 then redis.call('XCLAIM', unpack(args)) end
end
if all > own + claimed then reply[3] = 1 end
return reply
