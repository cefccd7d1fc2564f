-- Remove one promoted job by its id, if no other group needs it.
-- uses: count
-- KEYS: 1 ready, 2 jobs, 3 counts
-- ARGV: 1 group, 2 id
-- Returns: 1 taken, 0 it is not promoted, or another group needs it (nothing was done).
-- An unread entry is deleted, because a group cannot skip it otherwise.
local ready, jobs, counts = KEYS[1], KEYS[2], KEYS[3]
local group, id = ARGV[1], ARGV[2]
local entry = redis.call('HGET', jobs, id)
if not entry or string.byte(entry) < 32 or redis.call('EXISTS', ready) == 0 then return 0 end
for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
  if info[2] ~= group then return 0 end
end
redis.call('XDEL', ready, entry)
redis.call('HDEL', jobs, id)
redis.call('XACK', ready, group, entry)
count(counts, 'done\31' .. group, 1)
return 1
