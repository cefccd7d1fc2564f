-- A delivery of a shard that runs in order failed: it keeps its place, and runs again after a pause.
-- uses: clock, full, owned
-- KEYS: 1 ready, 2 order
-- ARGV: 1 group, 2 consumer, 3 entry id, 4 pause_ms, 5 record of the next run
-- Returns: due_ms of the next run; 0 when the delivery was not the caller's any more (nothing changed).
-- It stays pending, so that whoever holds the shard next finds it in its place; record and time are kept beside it.
local ready, order = KEYS[1], KEYS[2]
local group, consumer, entry, pause_ms, record = unpack(ARGV)
if not owns(ready, group, consumer, entry) then return 0 end
write_though_full(ready)
local due = due_ms('+' .. pause_ms)
redis.call('HSET', order, entry, string.format('%.0f ', due) .. record)
return due
