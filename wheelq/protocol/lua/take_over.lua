-- Take over deliveries of consumers that are gone.
-- uses: count
-- KEYS: 1 ready, 2 counts (may be left out)
-- ARGV: 1 group, 2 consumer, 3 most deliveries (up to 500), 4 abandoned_ms, 5 how many of the consumers named next are
--       known to be gone, then the names of consumers: the rest lose only deliveries not renewed for abandoned_ms
-- Returns: entry ids of the deliveries that are the caller's now; fewer than asked for: there are no more.
-- The caller decides which consumers are gone, because it has watched them: after a step of the server's clock, idle times
-- mean nothing. After a step backwards they stay 0 until the clock has caught up, so for the rest such deliveries are
-- timed from now. JUSTID leaves the delivery counter to `adopt`.
local ready, counts = KEYS[1], KEYS[2]
local group, consumer, most, abandoned_ms, gone = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local LOOKED_AT = 1000
local taken = {}
local function claim(holder, entries)
  if #entries == 0 then return end
  local args = {ready, group, holder, 0}
  for n, entry in ipairs(entries) do args[n + 4] = entry end
  args[#args + 1] = 'JUSTID'
  redis.call('XCLAIM', unpack(args))
end
for n = 6, #ARGV do
  local holder, found, ids, unclear = ARGV[n], nil, {}, {}
  local left = most - #taken
  if n - 5 <= gone then
    found = left > 0 and redis.call('XPENDING', ready, group, '-', '+', left, holder)
  else
    for _, one in ipairs(redis.call('XPENDING', ready, group, '-', '+', LOOKED_AT, holder)) do
      if one[3] == 0 then unclear[#unclear + 1] = one[1] end
    end
    found = left > 0 and redis.call('XPENDING', ready, group, 'IDLE', abandoned_ms, '-', '+', left, holder)
  end
  for _, one in ipairs(found or {}) do
    ids[#ids + 1] = one[1]
    taken[#taken + 1] = one[1]
  end
  claim(consumer, ids)
  claim(holder, unclear)
end
count(counts, 'recovered\31' .. group, #taken)
return taken
