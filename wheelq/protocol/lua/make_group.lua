-- Make a consumer group.
-- uses: full
-- KEYS: 1 ready
-- ARGV: 1 group, 2 where it starts: "beginning" of the stream, or "now", behind all that is there
-- Returns: 1 made, 0 it was there.
-- The first group of a stream starts at the beginning in any case: what was promoted before any group was there waits
-- for it, and would be lost.
local ready = KEYS[1]
local group, start = ARGV[1], ARGV[2]
local groups = redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}
for _, info in ipairs(groups) do
  if info[2] == group then return 0 end
end
write_though_full(ready)
redis.call('XGROUP', 'CREATE', ready, group, start == 'now' and #groups > 0 and '$' or '0', 'MKSTREAM')
return 1
