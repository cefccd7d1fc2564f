-- Renew deliveries in progress, so that no other consumer takes them for abandoned.
-- uses: clock, owned
-- KEYS: 1 ready
-- ARGV: 1 group, 2 consumer, then up to 500 entry ids
-- Returns: {now_us, entry id, ...} with those that are no longer the caller's.
-- JUSTID leaves the delivery counter alone.
local ready = KEYS[1]
local group, consumer = ARGV[1], ARGV[2]
local kept, reply = {}, {now_us()}
for n = 3, #ARGV do
  if owns(ready, group, consumer, ARGV[n]) then kept[#kept + 1] = ARGV[n] else reply[#reply + 1] = ARGV[n] end
end
if #kept > 0 then
  local args = {ready, group, consumer, 0}
  for n = 1, #kept do args[n + 4] = kept[n] end
  args[#args + 1] = 'JUSTID'
  redis.call('XCLAIM', unpack(args))
end
return reply
