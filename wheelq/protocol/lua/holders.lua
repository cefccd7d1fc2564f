-- Tell which consumers of a group hold deliveries, in up to 100 shards.
-- KEYS: the ready streams
-- ARGV: 1 group
-- Returns: for each stream {consumer, deliveries, consumer, …}; {} if there is no such group.
local group = ARGV[1]
local reply = {}
for n, ready in ipairs(KEYS) do
  local pending = redis.pcall('XPENDING', ready, group)
  reply[n] = {}
  for _, holder in ipairs(not pending['err'] and pending[4] or {}) do
    table.insert(reply[n], holder[1])
    table.insert(reply[n], tonumber(holder[2]))
  end
end
return reply
