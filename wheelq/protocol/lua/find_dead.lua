-- Find dead jobs.
-- uses: clock, fields, matches
-- KEYS: 1 dead
-- ARGV: 1 "newest" or "oldest" first, 2 entry id to begin with, 3 to end with, 4 most entries looked at, 5 most found,
--       6 group, 7 reason, 8 job id; "" means any
-- Returns: {now_ms, entry id of the last one looked at or "" when that was all, entry id, fields, entry id, ...}.
-- A call that finds little ends as well, and tells where to continue.
local dead = KEYS[1]
local order, first, last, most, limit, group, reason, id = unpack(ARGV)
local command = order == 'newest' and 'XREVRANGE' or 'XRANGE'
local seen = redis.call(command, dead, first, last, 'COUNT', most)
local reply = {now_ms(), #seen == tonumber(most) and seen[#seen][1] or ''}
for n, entry in ipairs(seen) do
  if matches(fields_of(entry[2]), group, reason, id) then
    reply[#reply + 1] = entry[1]
    reply[#reply + 1] = entry[2]
    if #reply == 2 * limit + 2 then
      if n < #seen then reply[2] = entry[1] end
      break
    end
  end
end
return reply
