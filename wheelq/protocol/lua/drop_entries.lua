-- Delete a part of the entries that belong only to a group that is being removed: its attempts after the first.
-- uses: full, parts, unfinished, hint, permits
-- KEYS: 1 ready, 2 groups
-- ARGV: 1 group, 2 entry id after which to begin, 3 most entries looked at
-- Returns: {entry id of the last one looked at or "" when that was all, how many were deleted}.
local ready, groups = KEYS[1], KEYS[2]
local group, cursor, most = ARGV[1], ARGV[2], ARGV[3]
local state = redis.call('HGET', groups, group)
if not state or state == '' then return {'', 0} end
local found, gone = redis.call('XRANGE', ready, '(' .. cursor, '+', 'COUNT', most), {}
for _, entry in ipairs(found) do
  if entry[2][10] == group then gone[#gone + 1] = entry[1] end
end
if #gone > 0 then
  write_though_full(ready)
  redis.call('XDEL', ready, unpack(gone))
  give_back(ready, group, gone)
end
return {#found == tonumber(most) and found[#found][1] or '', #gone}
