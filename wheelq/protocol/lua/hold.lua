-- Hold a shard for one consumer of a group, so that its jobs run in order: take the lease or renew it, and take over
-- what other consumers left behind.
-- uses: clock, full, count
-- KEYS: 1 ready, 2 order, 3 counts
-- ARGV: 1 group, 2 consumer, 3 lease_ms, 4 abandoned_ms, 5 shards that the consumer holds, 6 "1" to be told of its own
--       deliveries too, 7 hold that is over, as it was answered before, or "", 8 how many consumers are known to be gone,
--       9 how many are unknown; then the names of both, then up to 500 entry ids that are finished, whose stored next
--       runs are deleted
-- Returns: {0, ms, hold}: another consumer holds it, says for how many ms, and is told that this one asks for it; or
--          {1, now_us, busy, asker or "", shards that the asker holds, {other consumers}, entry id, …}: the deliveries
--          taken over. busy 1: the others still have deliveries; nothing may start before these are done.
-- One step, so that a shard never has two holders. The caller decides by its own clock whether a hold is over and which
-- consumers are gone, because the server's clock may be stepped. JUSTID leaves the delivery counter to `adopt`.
local ready, order, counts = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, lease_ms, abandoned_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local holds, tells_own, over = tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7]
local MOST_FOREIGN, HANDED_BACK_MS = 500, 43200000
local now = now_ms()
local pending = redis.call('XPENDING', ready, group) -- first, so that nothing is written where the group was removed
local known = redis.call('HMGET', order, 'owner', 'until', 'asker', 'asks_until', 'asker_holds')
local asks_until = tonumber(known[4] or 0) or 0
local asker = known[3] and asks_until > now and asks_until <= now + 2 * lease_ms and known[3] or ''
write_though_full(ready)
local held = known[1] and known[1] .. ' ' .. (known[2] or '')
if held and known[1] ~= consumer and held ~= over then
  if asker == '' or asker == consumer or holds < (tonumber(known[5] or 0) or 0) then
    redis.call('HSET', order, 'asker', consumer, 'asks_until', now + lease_ms, 'asker_holds', holds)
  end
  return {0, (tonumber(known[2] or 0) or 0) - now, held}
end
redis.call('HSET', order, 'owner', consumer, 'until', now + lease_ms)
local names, idle_ms = 9 + ARGV[8] + ARGV[9], {} -- consumer → idle time from which its deliveries are taken over
for n = 10, names do idle_ms[ARGV[n]] = n - 9 <= tonumber(ARGV[8]) and 0 or abandoned_ms end
if #ARGV > names then redis.call('HDEL', order, unpack(ARGV, names + 1)) end
if asker == consumer then asker = '' end

local all, own, claimed, others = pending[1], 0, 0, {}
for _, holder in ipairs(pending[4] or {}) do
  if holder[1] == consumer then own = tonumber(holder[2]) else others[#others + 1] = holder[1] end
end
local reply = {1, now_us(), 0, asker, asker ~= '' and tonumber(known[5] or 0) or 0, others}
if all > own or (tells_own and all > 0) then
  local args = {ready, group, consumer, 0}
  for _, one in ipairs(redis.call('XPENDING', ready, group, '-', '+', own + MOST_FOREIGN)) do
    local is_own = one[2] == consumer
    local is_left = not is_own and one[3] >= (idle_ms[one[2]] or HANDED_BACK_MS)
    if is_left then args[#args + 1] = one[1] end
    if is_left or (is_own and tells_own) then reply[#reply + 1] = one[1] end
  end
  claimed = #args - 4
  args[#args + 1] = 'JUSTID'
  if claimed > 0 then redis.call('XCLAIM', unpack(args)) end
  count(counts, 'recovered\31' .. group, claimed)
end
if all > own + claimed then reply[3] = 1 end
return reply
