-- Make a consumer group.
-- uses: full, clock
-- KEYS: 1 ready, 2 groups (may be left out), 3 counts (may be left out)
-- ARGV: 1 group, 2 where it starts: "beginning" of the stream, or "now", after all its entries
-- Returns: 1 made, 0 it was there already, -1 it is being removed: try again shortly.
-- The first group of a stream always starts at the beginning: jobs that were promoted before there was any group wait for
-- it, and would be lost otherwise. For a minute from then on no finished job is removed from the stream, so that groups
-- made within this minute, at the beginning, miss none either; this needs `counts`.
local ready, known, counts = KEYS[1], KEYS[2], KEYS[3]
local group, start = ARGV[1], ARGV[2]
local state = known and redis.call('HGET', known, group)
if state and state ~= '' then return -1 end
local groups = redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}
for _, info in ipairs(groups) do
  if info[2] == group then return 0 end
end
write_though_full(ready)
redis.call('XGROUP', 'CREATE', ready, group, start == 'now' and #groups > 0 and '$' or '0', 'MKSTREAM')
if known then redis.call('HSET', known, group, '') end
if counts and #groups == 0 then redis.pcall('HSET', counts, 'born', string.format('%.0f ms', now_ms())) end
return 1
