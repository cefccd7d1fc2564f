-- Take one promoted job off the line by its id, when no group but this one is there to need it.
-- KEYS: 1 ready, 2 jobs
-- ARGV: 1 group, 2 id
-- Returns: 1 taken, 0 it is not promoted, or another group needs it (nothing was done).
-- Unread entries are deleted, because a group can pass over nothing else.
local ready, jobs = KEYS[1], KEYS[2]
local group, id = ARGV[1], ARGV[2]
local entry = redis.call('HGET', jobs, id)
if not entry or string.byte(entry) < 32 or redis.call('EXISTS', ready) == 0 then return 0 end
for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
  if info[2] ~= group then return 0 end
end
redis.call('XDEL', ready, entry)
redis.call('HDEL', jobs, id)
redis.call('XACK', ready, group, entry)
return 1
