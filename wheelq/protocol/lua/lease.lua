-- Lease deliveries for a while: first those whose lease has ended, then new ones.
-- uses: clock
-- KEYS: 1 ready
-- ARGV: 1 group, 2 consumer, 3 idle_ms with which a lease has ended, 4 idle_ms to begin with (so much of it is spent
--       at once: what is left is the lease), 5 how many, 6 cursor among the deliveries under way
-- Returns: {cursor, now_ms, entry id, deliveries, fields, entry id, ...}.
-- One step: a delivery is never without an end to its lease, which a server that dies in between would leave for ever.
-- Redis 6.2 claims entries that were deleted meanwhile; they are acknowledged away.
local ready = KEYS[1]
local group, consumer, ended_ms, begun_ms, limit, cursor = unpack(ARGV)
local reply, left = {}, tonumber(limit)
local claimed = redis.call('XAUTOCLAIM', ready, group, consumer, ended_ms, cursor, 'COUNT', limit, 'JUSTID')
reply[1], reply[2] = claimed[1], now_ms()
for _, entry in ipairs(claimed[2]) do
  local found = redis.call('XRANGE', ready, entry, entry)[1]
  local pending = redis.call('XPENDING', ready, group, entry, entry, 1)[1]
  if not found then
    redis.call('XACK', ready, group, entry)
  elseif pending then
    local count = pending[4] + 1
    redis.call('XCLAIM', ready, group, consumer, 0, entry, 'IDLE', begun_ms, 'RETRYCOUNT', count, 'JUSTID')
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = entry, count, found[2]
    left = left - 1
  end
end
local new = left > 0 and redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', left, 'STREAMS', ready, '>')
for _, entry in ipairs(new and new[1][2] or {}) do
  redis.call('XCLAIM', ready, group, consumer, 0, entry[1], 'IDLE', begun_ms, 'JUSTID')
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = entry[1], 1, entry[2]
end
return reply
