-- Make a consumer group that begins with the stream.
-- uses: full
-- KEYS: 1 ready
-- ARGV: 1 group
-- Returns: 1 made, 0 it was there.
local ready = KEYS[1]
local group = ARGV[1]
if redis.call('EXISTS', ready) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
    if info[2] == group then return 0 end
  end
end
write_though_full(ready)
redis.call('XGROUP', 'CREATE', ready, group, '0', 'MKSTREAM')
return 1
