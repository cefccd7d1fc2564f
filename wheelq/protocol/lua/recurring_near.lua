-- Read the recurring jobs whose next occurrence is near.
-- uses: clock, entry
-- KEYS: 1 recurring, 2 occurrences
-- ARGV: 1 how far ahead, in ms, 2 most recurring jobs
-- Returns: {now_us, when to look at the first of the others ("" = there is none),
--           name, state, rule, name, state, rule, ...}, earliest first.
-- The records, which may be long, stay here.
local recurring, occurrences = KEYS[1], KEYS[2]
local ahead_ms, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local found = redis.call('ZRANGEBYSCORE', occurrences, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, limit + 1)
local reply = {now_us(), ''}
for n = 1, #found, 2 do
  local name, due = found[n], found[n + 1]
  if tonumber(due) > now_ms() + ahead_ms or n > 2 * limit then
    reply[2] = due
    break
  end
  local stored = redis.call('HGET', recurring, name)
  if stored then
    local state = state_of(stored)
    reply[#reply + 1] = name
    reply[#reply + 1] = state
    reply[#reply + 1] = string.sub(stored, #state + 2 + #record_of(stored))
  else -- another program wrote it; it is removed so that no scheduler fails on it again and again
    redis.call('ZREM', occurrences, name)
  end
end
return reply
