-- Name the consumer groups of a shard.
-- KEYS: 1 ready
-- Returns: {name, ...}; empty when nothing was promoted and no group made.
-- A script, because XINFO fails where there is no stream yet.
local ready = KEYS[1]
local names = {}
for _, info in ipairs(redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
  names[#names + 1] = info[2]
end
return names
