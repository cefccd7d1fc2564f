-- Remove one promoted job by its id, if no other group needs it.
-- uses: clock, life, head_parts, parts, unfinished, hint, permits, count, outgoing, bundles, ended_members
-- KEYS: 1 ready, 2 jobs, 3 counts, 4 bundles, 5 outgoing
-- ARGV: 1 group, 2 id, 3 near channel
-- Returns: 1 taken, 0 it is not promoted, or another group needs it (nothing was done).
-- An unread entry is deleted, because a group cannot skip it otherwise.
local ready, jobs, counts, bundles, outgoing = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, id, near = ARGV[1], ARGV[2], ARGV[3]
local entry = redis.call('HGET', jobs, id)
if not entry or string.byte(entry) < 32 or redis.call('EXISTS', ready) == 0 then return 0 end
for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
  if info[2] ~= group then return 0 end
end
local lives = members_of(ready, {entry})
redis.call('XDEL', ready, entry)
redis.call('HDEL', jobs, id)
redis.call('XACK', ready, group, entry)
give_back(ready, group, {entry})
count(counts, 'done\31' .. group, 1)
count_finished(bundles, outgoing, near, lives, {id}, {id}, {'done'})
return 1
