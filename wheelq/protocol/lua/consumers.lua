-- Name the consumers of a group that were active lately.
-- uses: fields
-- KEYS: 1 ready
-- ARGV: 1 group, 2 ms within which
-- Returns: {name, ...}; empty where there is no such group.
local ready = KEYS[1]
local group, lately_ms, names = ARGV[1], tonumber(ARGV[2]), {}
for _, info in ipairs(redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
  if info[2] == group then
    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', ready, group)) do
      local fields = fields_of(consumer)
      if fields['idle'] < lately_ms then names[#names + 1] = fields['name'] end
    end
  end
end
return names
