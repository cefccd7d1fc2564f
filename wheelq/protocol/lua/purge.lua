-- Remove dead jobs for good, oldest first.
-- uses: clock, fields, matches, remove_dead
-- KEYS: 1 dead, 2 buried
-- ARGV: 1 entry id to begin with, 2 to end with, 3 most entries looked at, 4 group, 5 reason, 6 job id; "" means any
-- Returns: {now_ms, entry id of the last one looked at or "" when that was all, how many were removed}.
local dead, buried = KEYS[1], KEYS[2]
local first, last, most, group, reason, id = unpack(ARGV)
local seen = redis.call('XRANGE', dead, first, last, 'COUNT', most)
local purged = 0
for _, entry in ipairs(seen) do
  if matches(fields_of(entry[2]), group, reason, id) then purged = purged + remove_dead(dead, buried, entry) end
end
return {now_ms(), #seen == tonumber(most) and seen[#seen][1] or '', purged}
