-- Lease deliveries for a while: first those whose lease has ended, then new ones.
-- uses: clock, count
-- KEYS: 1 ready, 2 counts
-- ARGV: 1 group, 2 consumer, 3 moment: leases dated at it or before have ended, 4 moment to date new ones at (so far in
--       the past that the time left is the lease), 5 how many, 6 consumer that owns what was given back, 7 "1" to
--       look for ended leases however many are under way. Moments are by the clock of leases: see lease_time.lua
-- Returns: {now_ms, entry id, deliveries, fields, entry id, …}.
-- The server's own clock only translates: Redis measures idle times by it, and its steps cancel out. Before Redis 7.2 it
-- goes on while a script runs, and a server that stalls would report idle times that are too long: so the clock is read
-- again after them, and a delivery is only taken if its lease has ended by the later reading, too.
-- One step, so that every delivery has an end to its lease: if an HTTP server died in between, it would never end.
-- To find ended leases, Redis looks at all deliveries under way, 10,000 in about half a millisecond. Where there are
-- more, the caller asks for that only now and then, and otherwise only deliveries that were given back are found.
-- Redis 6.2 also claims entries that were deleted meanwhile; they are acknowledged here.
local ready, counts = KEYS[1], KEYS[2]
local group, consumer, ended_ms, begun_ms, limit, unleased, looks = unpack(ARGV)
local reply, left, LOOKED_OVER = {now_ms()}, tonumber(limit), 10000
local idle_ms = math.max(1, now_ms() - ended_ms)
local ended
local recovered = 0
if looks == '1' or redis.call('XPENDING', ready, group)[1] <= LOOKED_OVER then
  ended = redis.call('XPENDING', ready, group, 'IDLE', idle_ms, '-', '+', left)
else
  ended = redis.call('XPENDING', ready, group, 'IDLE', idle_ms, '-', '+', left, unleased)
end
if #ended > 0 then
  local later = redis.call('TIME')
  idle_ms = math.max(1, later[1] * 1000 + math.floor(later[2] / 1000) - ended_ms)
end
for _, pending in ipairs(ended) do
  local entry, count = pending[1], pending[4] + 1
  local is_over = pending[3] >= idle_ms
  local found = is_over and redis.call('XRANGE', ready, entry, entry)[1]
  if found then
    redis.call('XCLAIM', ready, group, consumer, 0, entry, 'TIME', begun_ms, 'RETRYCOUNT', count, 'JUSTID')
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = entry, count, found[2]
    left = left - 1
    if pending[2] ~= unleased then recovered = recovered + 1 end -- its lease ended without an answer
  elseif is_over then
    redis.call('XACK', ready, group, entry)
  end
end
local new = left > 0 and redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', left, 'STREAMS', ready, '>')
for _, entry in ipairs(new and new[1][2] or {}) do
  redis.call('XCLAIM', ready, group, consumer, 0, entry[1], 'TIME', begun_ms, 'JUSTID')
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = entry[1], 1, entry[2]
end
count(counts, 'recovered\31' .. group, recovered)
return reply
