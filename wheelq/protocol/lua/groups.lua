-- Name the consumer groups of a shard, except those that are being removed.
-- KEYS: 1 ready, 2 groups
-- Returns: {name, ...}; empty when nothing was promoted and no group made.
-- A script, because XINFO fails where there is no stream yet.
local ready, groups = KEYS[1], KEYS[2]
local names = {}
for _, info in ipairs(redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
  local state = redis.call('HGET', groups, info[2])
  if not state or state == '' then names[#names + 1] = info[2] end
end
return names
