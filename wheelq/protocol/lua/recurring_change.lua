-- Put, change or remove a recurring job, and take its waiting occurrence back.
-- uses: entry, tell
-- KEYS: 1 recurring, 2 occurrences, 3 delayed, 4 jobs, 5 news
-- ARGV: 1 near channel, 2 the notice that is said there, 3 name, 4 the state that was seen ("" = it was not there),
--       5 what is to be stored ("" = remove it), 6 when its next occurrence is due ("" = never),
--       7 id of the occurrence to take back ("" = none waits)
-- Returns: 1 it is as asked, also when this very call has done it before; 0 it is no longer as it was seen.
-- Atomic, so that the occurrence that waits is one of the old definition or of the new, and never both. When it was
-- promoted meanwhile, the answer is 0: what comes next depends on it. A repeated call is told by its revision.
local recurring, occurrences, delayed, jobs, news = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local near, notice, name, before, after, due, waiting = unpack(ARGV)
local stored = redis.call('HGET', recurring, name)
local function revision(state) return string.match(state, '^%S*') end
if not stored and after == '' or stored and revision(stored) == revision(after) then return 1 end
if (stored and state_of(stored) or '') ~= before then return 0 end
if waiting ~= '' then
  if redis.call('ZREM', delayed, waiting) == 0 then return 0 end
  redis.call('HDEL', jobs, waiting)
  tell_ended(news, {waiting})
end
if after == '' then
  redis.call('ZREM', occurrences, name)
  redis.call('HDEL', recurring, name)
  return 1
end
-- What is looked at comes first: a script that fails half-way must leave no definition that nobody looks at.
if due == '' then
  redis.call('ZREM', occurrences, name)
else
  redis.call('ZADD', occurrences, due, name)
  redis.call('PUBLISH', near, notice)
end
redis.call('HSET', recurring, name, after)
return 1
