-- Begin or continue to remove a consumer group: drop its pending deliveries, and in the end the group itself.
-- uses: full, fields, parts, unfinished, hint, permits
-- KEYS: 1 ready, 2 groups
-- ARGV: 1 group, 2 "begin", "if gone" to begin only if the group is not here, or "" to continue
-- Returns: {deliveries dropped, 1 if the group was here, 1 if it still is}; {} it is not being removed, or no longer.
-- From the first call on, the key `groups` says that it is being removed, and names the last entry that concerns it. So no
-- client makes the group again before the removal has ended, and any client can continue a half-done one. If another program
-- makes the group again anyway, the removal only takes longer.
local ready, groups = KEYS[1], KEYS[2]
local group, begins = ARGV[1], ARGV[2]
local MOST_AT_ONCE = 500
local state = redis.call('HGET', groups, group)
local is_begun = state and state ~= ''
if not is_begun and begins == '' then return {} end
local pending, last
for _, info in ipairs(redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
  local fields = fields_of(info)
  if fields['name'] == group then
    pending, last = fields['pending'], fields['last-delivered-id']
  end
end
if pending and not is_begun and begins == 'if gone' then return {} end
write_though_full(ready)
if not pending then
  if not is_begun then redis.call('HSET', groups, group, '0-0') end
  return {0, 0, 0}
end
local newest = redis.call('XREVRANGE', ready, '+', '-', 'COUNT', 1)[1]
if newest and after(newest[1], last) then last = newest[1] end -- the last entry given may have been trimmed
redis.call('HSET', groups, group, last)
local dropped = {}
for n, delivery in ipairs(redis.call('XPENDING', ready, group, '-', '+', MOST_AT_ONCE)) do dropped[n] = delivery[1] end
if #dropped > 0 then
  redis.call('XACK', ready, group, unpack(dropped))
  give_back(ready, group, dropped)
end
if pending > MOST_AT_ONCE then return {#dropped, 1, 1} end
redis.call('XGROUP', 'DESTROY', ready, group)
return {#dropped, 1, 0}
