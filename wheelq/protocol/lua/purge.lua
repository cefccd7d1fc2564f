-- Remove dead jobs for good, oldest first.
-- uses: clock, life, head_parts, fields, matches, hint, outgoing, bundles, remove_dead
-- KEYS: 1 dead, 2 buried, 3 bundles, 4 outgoing
-- ARGV: 1 entry id to begin with, 2 to end with, 3 most entries looked at, 4 group, 5 reason, 6 job id, 7 near channel; "" in
--       4 to 6 means any
-- Returns: {now_ms, entry id of the last one looked at or "" when that was all, how many were removed}.
local dead, buried, bundles, outgoing = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local first, last, most, group, reason, id, near = unpack(ARGV)
local seen = redis.call('XRANGE', dead, first, last, 'COUNT', most)
local purged, ends = 0, {}
for _, entry in ipairs(seen) do
  if matches(fields_of(entry[2]), group, reason, id) then purged = purged + remove_dead(dead, buried, entry, ends) end
end
if #ends > 0 then count_ends(bundles, outgoing, near, ends) end
return {now_ms(), #seen == tonumber(most) and seen[#seen][1] or '', purged}
