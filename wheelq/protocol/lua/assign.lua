-- Replace the assignment of shards, unless somebody else has done so meanwhile.
-- uses: full
-- KEYS: 1 assignment
-- ARGV: 1 version this one was made from, 2 next version, 3 posts, 4 channel for changes
-- Returns: 1 replaced, 0 another version is there.
-- Atomic, so that of two nodes that find it out of date one wins and the other reads.
local assignment = KEYS[1]
local from, to, posts, changed = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if (redis.call('HGET', assignment, 'version') or '0') ~= from then return 0 end
write_though_full(assignment)
redis.call('HSET', assignment, 'version', to, 'posts', posts)
redis.call('PUBLISH', changed, 'assignment')
return 1
