-- Put, change or remove a recurring job, and take its waiting occurrence back.
-- uses: entry, tell, hint, count
-- KEYS: 1 recurring, 2 occurrences, 3 delayed, 4 jobs, 5 news, 6 counts
-- ARGV: 1 near channel, 2 the message to publish there, 3 name, 4 the state that the caller saw ("" = it was not there),
--       5 what to store ("" = remove it), 6 when its next occurrence is due ("" = never),
--       7 id of the occurrence to take back ("" = none waits)
-- Returns: 1 it is as asked, even if this very call did it before; 0 its state is no longer the one that was seen.
-- Atomic, so that the waiting occurrence is by the old definition or by the new one, and there are never both. If it was
-- promoted meanwhile, the answer is 0, because the next one depends on it. Its revision marks a repeated call.
local recurring, occurrences, delayed, jobs, news, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local near, notice, name, before, after, due, waiting = unpack(ARGV)
local stored = redis.call('HGET', recurring, name)
local function revision(state) return string.match(state, '^%S*') end
if not stored and after == '' or stored and revision(stored) == revision(after) then return 1 end
if (stored and state_of(stored) or '') ~= before then return 0 end
if waiting ~= '' then
  if redis.call('ZREM', delayed, waiting) == 0 then return 0 end
  redis.call('HDEL', jobs, waiting)
  tell_ended(news, {waiting})
  count(counts, 'cancelled\31', 1)
end
if after == '' then
  redis.call('ZREM', occurrences, name)
  redis.call('HDEL', recurring, name)
  return 1
end
-- The key that schedulers read is written first: a script that fails half-way must not leave a definition that no
-- scheduler looks at.
if due == '' then
  redis.call('ZREM', occurrences, name)
else
  redis.call('ZADD', occurrences, due, name)
  hint(near, notice)
end
redis.call('HSET', recurring, name, after)
return 1
