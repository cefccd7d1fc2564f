-- Make occurrences of a recurring job: schedule the jobs that they are, and note it.
-- uses: clock, score, entry, tell
-- KEYS: 1 recurring, 2 occurrences, 3 delayed, 4 jobs, 5 horizon, 6 news
-- ARGV: 1 near channel, 2 name, 3 the state that was seen, 4 the state it gets, 5 when to look again ("" = never),
--       6 id of an earlier occurrence for which the last of these stands, or which stands for that one ("" = none),
--       then for each occurrence: id, due (see clock)
-- Returns: 1 done; 0 it is no longer as it was seen, and nothing was done.
-- Atomic, so that each occurrence is made once: a second node, or one that was frozen and wakes, or a call that is
-- repeated, finds another state. An earlier occurrence that waits is taken back; one that was promoted after the last of
-- these was due has run, or will, in its place. A job that has the id already is left alone.
local recurring, occurrences, delayed, jobs, horizon, news = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local near, name, before, after = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local look_ms, earlier = ARGV[5], ARGV[6]
local stored = redis.call('HGET', recurring, name)
if not stored or state_of(stored) ~= before then return 0 end

local function stands_in(id, due)
  local pointer = redis.call('HGET', jobs, id)
  if pointer and string.byte(pointer) >= 32 then return tonumber(string.match(pointer, '^%d+')) >= due end
  if redis.call('ZREM', delayed, id) == 1 then
    redis.call('HDEL', jobs, id)
    tell_ended(news, {id})
  end
  return false
end

local record, loaded_to = record_of(stored), tonumber(redis.call('GET', horizon) or -1)
local covered = earlier ~= '' and #ARGV > 6 and stands_in(earlier, (due_ms(ARGV[#ARGV])))
for n = 7, covered and 0 or #ARGV, 2 do
  local id, due, fraction = ARGV[n], due_ms(ARGV[n + 1])
  if redis.call('HEXISTS', jobs, id) == 0 then
    redis.call('ZADD', delayed, score_of(due, fraction), id)
    redis.call('HSET', jobs, id, record)
    if due <= loaded_to then redis.call('PUBLISH', near, string.format('%.0f %s', due, id)) end
  end
end
if look_ms == '' then
  redis.call('ZREM', occurrences, name)
else
  redis.call('ZADD', occurrences, look_ms, name)
end
redis.call('HSET', recurring, name, after .. string.sub(stored, #before + 1))
return 1
