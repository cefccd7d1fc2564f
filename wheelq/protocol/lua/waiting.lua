-- Return a page of the waiting jobs, in order of due time.
-- uses: place
-- KEYS: 1 delayed
-- ARGV: 1 from (score), 2 to (score), 3 the last member of the page before, which has the score in 1, or "", 4 how many at
--       most
-- Returns: {member, score, ...}.
-- No job is returned twice or left out because others came or went between two pages.
local delayed = KEYS[1]
local from, to, member, limit = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local first = place_behind(delayed, from, member)
local found = redis.call('ZRANGE', delayed, first, first + limit - 1, 'WITHSCORES')
while #found > 0 and tonumber(found[#found]) > to do
  found[#found] = nil
  found[#found] = nil
end
return found
