-- Replace the assignment of shards, unless another node has done so meanwhile.
-- uses: full, hint
-- KEYS: 1 assignment
-- ARGV: 1 version this one was made from, 2 next version, 3 posts, 4 channel for changes
-- Returns: 1 replaced, 0 another version is there.
-- Atomic, so that if two nodes find it out of date, one replaces it and the other reads the result.
local assignment = KEYS[1]
local from, to, posts, changed = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local found = redis.call('HGET', assignment, 'version') or '0'
if not string.find(found, '^%d+$') or #found > 19 then found = '0' end -- what another program wrote is no version
if found ~= from then return 0 end
write_though_full(assignment)
redis.call('HSET', assignment, 'version', to, 'posts', posts)
hint(changed, 'assignment')
return 1
