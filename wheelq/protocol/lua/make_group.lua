-- Make a consumer group.
-- uses: full
-- KEYS: 1 ready, 2 groups (may be left out)
-- ARGV: 1 group, 2 where it starts: "beginning" of the stream, or "now", after all its entries
-- Returns: 1 made, 0 it was there already, -1 it is being removed: try again shortly.
-- The first group of a stream always starts at the beginning: jobs that were promoted before there was any group wait for
-- it, and would be lost otherwise.
local ready, known = KEYS[1], KEYS[2]
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
return 1
