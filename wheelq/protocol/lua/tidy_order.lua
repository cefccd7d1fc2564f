-- Forget the next runs of deliveries that have ended, which a holder that was killed left behind.
-- KEYS: 1 ready, 2 order
-- ARGV: 1 group, 2 cursor, "0" at first
-- Returns: the cursor for the next call, "0" at the end.
-- One step, because a delivery that is put off meanwhile must not count as ended. It stays pending until it ends.
local ready, order, group, cursor = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local found = redis.call('HSCAN', order, cursor, 'COUNT', 100)
for n = 1, #found[2], 2 do
  local field = found[2][n]
  if string.find(field, '^%d+%-%d+$') and not redis.call('XPENDING', ready, group, field, field, 1)[1] then
    redis.call('HDEL', order, field)
  end
end
return found[1]
