-- Remove a consumer that has nothing pending.
-- uses: full, fields
-- KEYS: 1 ready
-- ARGV: 1 group, 2 consumer
-- Returns: 1 removed, 0 it holds deliveries (removing it would lose them) or is not there.
local ready = KEYS[1]
local group, consumer = ARGV[1], ARGV[2]
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', ready, group)) do
  local fields = fields_of(info)
  if fields['name'] == consumer and fields['pending'] == 0 then
    write_though_full(ready)
    redis.call('XGROUP', 'DELCONSUMER', ready, group, consumer)
    return 1
  end
end
return 0
