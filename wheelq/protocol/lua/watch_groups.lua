-- Remember the consumer groups of a shard, and name those that are gone or are being removed.
-- KEYS: 1 ready, 2 groups
-- Returns: names of groups that were destroyed or are being removed.
-- XGROUP DESTROY notifies nobody, so the key `groups` remembers the names.
local ready, groups = KEYS[1], KEYS[2]
local here, reply = {}, {}
for _, info in ipairs(redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
  here[info[2]] = true
  if redis.call('HEXISTS', groups, info[2]) == 0 then redis.call('HSET', groups, info[2], '') end
end
local cursor = '0'
repeat
  local page = redis.call('HSCAN', groups, cursor, 'COUNT', 500)
  cursor = page[1]
  for n = 1, #page[2], 2 do
    if not here[page[2][n]] or page[2][n + 1] ~= '' then reply[#reply + 1] = page[2][n] end
  end
until cursor == '0'
return reply
