-- Take over deliveries that nobody renews: their worker is dead.
-- KEYS: 1 ready
-- ARGV: 1 group, 2 consumer, 3 abandoned_ms, 4 cursor, 5 most entries
-- Returns: {next cursor, entry id, deliveries so far, fields, entry id, ...}; the counter includes this delivery.
-- XAUTOCLAIM examines at most ten times COUNT entries a call, so the cursor must be kept. With JUSTID its reply has one
-- shape on every server; Redis 6.2 also lists entries deleted meanwhile, which are acknowledged away here.
local ready = KEYS[1]
local group, consumer, abandoned_ms, cursor, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local claimed = redis.call('XAUTOCLAIM', ready, group, consumer, abandoned_ms, cursor, 'COUNT', count, 'JUSTID')
local reply = {claimed[1]}
for _, entry in ipairs(claimed[2]) do
  local found = redis.call('XRANGE', ready, entry, entry)[1]
  if found then
    local deliveries = redis.call('XPENDING', ready, group, entry, entry, 1)[1][4] + 1
    redis.call('XCLAIM', ready, group, consumer, 0, entry, 'RETRYCOUNT', deliveries, 'JUSTID')
    reply[#reply + 1] = entry
    reply[#reply + 1] = deliveries
    reply[#reply + 1] = found[2]
  else
    redis.call('XACK', ready, group, entry)
  end
end
return reply
