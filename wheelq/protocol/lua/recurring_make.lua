-- Make occurrences of a recurring job: schedule a job for each, and store the new state.
-- uses: clock, head, stamp, stored, score, entry, tell, hint, horizon, hint_due, count
-- KEYS: 1 recurring, 2 occurrences, 3 delayed, 4 jobs, 5 horizon, 6 news, 7 counts
-- ARGV: 1 near channel, 2 name, 3 the state that the caller saw, 4 the new state, 5 when to look again ("" = never),
--       6 id of an earlier occurrence ("" = none), then for each occurrence: id, due (see clock)
-- Returns: 1 done; 0 the state is no longer the one that was seen, and nothing was done.
-- Atomic, so that each occurrence is made once: a second node, one that was frozen and wakes up, or a repeated call finds
-- another state. The earlier occurrence is taken back if it still waits. If it was promoted after the last of these was
-- due, it has run, or will run, in place of that one. Without any of these all were too late, and so is the earlier one,
-- unless somebody has moved it to a later time. A job that already has the id is left alone. The revision of the recurring
-- job is the life of its occurrences, so one that is taken back and made again is another job.
local recurring, occurrences, delayed, jobs, horizon, news = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local near, name, before, after = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local look_ms, earlier, created, withdrawn = ARGV[5], ARGV[6], 0, 0
local counts = KEYS[7]
local stored = redis.call('HGET', recurring, name)
if not stored or state_of(stored) ~= before then return 0 end

local function stands_in(id, due)
  local pointer = redis.call('HGET', jobs, id)
  if pointer and is_entry(pointer) then return tonumber(string.match(pointer, '^%d+')) >= due end
  local is_moved = #ARGV == 6 and (due_of(redis.call('ZSCORE', delayed, id)) or 0) > now_ms()
  if not is_moved and redis.call('ZREM', delayed, id) == 1 then
    redis.call('HDEL', jobs, id)
    tell_ended(news, {id})
    withdrawn = 1
  end
  return false
end

local record = record_of(stored)
if is_record(record) then
  local life = string.gsub(string.match(before, '^%x*'), '%x%x', function(pair) return string.char(tonumber(pair, 16)) end)
  record = lived(stamped(record, stamp_of(now_ms())), string.sub(life .. string.rep('\0', 8), 1, 8))
end
local covered = earlier ~= '' and stands_in(earlier, #ARGV > 6 and due_ms(ARGV[#ARGV]) or 0)
for n = 7, covered and 0 or #ARGV, 2 do
  local id, due, fraction = ARGV[n], due_ms(ARGV[n + 1])
  if redis.call('HEXISTS', jobs, id) == 0 then
    redis.call('ZADD', delayed, score_of(due, fraction), id)
    redis.call('HSET', jobs, id, record)
    hint_due(near, horizon, due, id)
    created = created + 1
  end
end
if look_ms == '' then
  redis.call('ZREM', occurrences, name)
else
  redis.call('ZADD', occurrences, look_ms, name)
end
redis.call('HSET', recurring, name, after .. string.sub(stored, #before + 1))
count(counts, 'created', created)
count(counts, 'cancelled\31', withdrawn)
return 1
