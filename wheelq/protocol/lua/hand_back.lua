-- Hand back deliveries that this worker will not finish, so that any worker finds them abandoned when it next looks.
-- uses: owned
-- KEYS: 1 ready
-- ARGV: 1 group, 2 consumer, 3 idle_ms to be shown, then up to 500 entry ids; with "=" before those of which this
--       delivery is not counted
-- Returns: how many were handed back.
-- The delivery is taken off the count again, so that no job is buried because its workers were restarted often.
local ready = KEYS[1]
local group, consumer, idle_ms = ARGV[1], ARGV[2], ARGV[3]
local given = 0
for n = 4, #ARGV do
  local entry = string.gsub(ARGV[n], '^=', '')
  if owns(ready, group, consumer, entry) then
    local others = redis.call('XPENDING', ready, group, entry, entry, 1)[1][4]
    if entry == ARGV[n] then others = math.max(others - 1, 0) end
    redis.call('XCLAIM', ready, group, consumer, 0, entry, 'IDLE', idle_ms, 'RETRYCOUNT', others, 'JUSTID')
    given = given + 1
  end
end
return given
