-- Look at deliveries that this consumer has claimed, and count this delivery, or only look.
-- KEYS: 1 ready
-- ARGV: 1 group, 2 consumer, 3 "look" to count nothing (may be left out), then up to 500 entry ids
-- Returns: {entry id, deliveries so far, fields, entry id, ...}; the count includes this delivery if it is counted.
-- Redis 6.2 also claims entries that were deleted meanwhile. They are acknowledged here, because nothing else would.
local ready = KEYS[1]
local group, consumer, only_looks = ARGV[1], ARGV[2], ARGV[3] == 'look'
local reply = {}
for n = only_looks and 4 or 3, #ARGV do
  local entry = ARGV[n]
  local found = redis.call('XRANGE', ready, entry, entry)[1]
  local pending = redis.call('XPENDING', ready, group, entry, entry, 1, consumer)[1]
  if not found then
    redis.call('XACK', ready, group, entry)
  elseif pending then
    local deliveries = pending[4] + (only_looks and 0 or 1)
    redis.call('XCLAIM', ready, group, consumer, 0, entry, 'RETRYCOUNT', deliveries, 'JUSTID')
    reply[#reply + 1] = entry
    reply[#reply + 1] = deliveries
    reply[#reply + 1] = found[2]
  end
end
return reply
