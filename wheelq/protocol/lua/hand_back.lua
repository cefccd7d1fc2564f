-- Hand deliveries back that this worker will not finish: the next look of any worker finds them abandoned.
-- uses: owned
-- KEYS: 1 ready
-- ARGV: 1 group, 2 consumer, 3 idle_ms to be shown, then up to 500 entry ids
-- Returns: how many were handed back.
local ready = KEYS[1]
local group, consumer, idle_ms = ARGV[1], ARGV[2], ARGV[3]
local given = 0
for n = 4, #ARGV do
  if owns(ready, group, consumer, ARGV[n]) then
    redis.call('XCLAIM', ready, group, consumer, 0, ARGV[n], 'IDLE', idle_ms, 'JUSTID')
    given = given + 1
  end
end
return given
