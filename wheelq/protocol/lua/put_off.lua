-- Let a failed delivery of an ordered shard keep its place, and run again after a pause.
-- uses: clock, full, owned, count
-- KEYS: 1 ready, 2 order, 3 counts
-- ARGV: 1 group, 2 consumer, 3 entry id, 4 pause_ms, 5 record of the next run, 6 outcome to count, 7 id
-- Returns: due_ms of the next run; 0 when the delivery was no longer the caller's (nothing changed).
-- It stays pending, so that the next holder of the shard finds it in its place; record and time are kept beside it. Its
-- deliveries count from here again, as those of any retry.
local ready, order, counts = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, entry, pause_ms, record = unpack(ARGV)
if not owns(ready, group, consumer, entry, nil, ARGV[7]) then return 0 end
write_though_full(ready)
local due = due_ms('+' .. pause_ms)
redis.call('HSET', order, entry, string.format('%.0f ', due) .. record)
redis.call('XCLAIM', ready, group, consumer, 0, entry, 'RETRYCOUNT', 1, 'JUSTID')
count(counts, ARGV[6] .. '\31' .. group, 1)
return due
