-- Run again, in one group, the next part of the jobs that this shard promoted between two times.
-- uses: clock, head_parts, life, stored, life_behind, parts, emit, count, hint, came, horizon, hint_due, retries, key_limits
-- KEYS: 1 ready, 2 jobs, 3 replays, 4 counts, 5 delayed, 6 retries, 7 shards, 8 horizon
-- ARGV: 1 name of the rerun, 2 entry id after which it begins, 3 entry id with which it ends ("" = the last one here),
--       4 group, 5 most entries looked at (up to 500), 6 ms for which its progress is kept, 7 near channel, 8 terms as in run_now
-- Returns: {1 if that was all, run again so far, left out so far}; {} the group is not here.
-- The progress is stored under the name and moves in the same step, so a call that is repeated, after a lost reply or by
-- another producer, continues where the last one ended. Each entry is added once more, for this group only, like a retry.
-- Jobs that the group has not finished yet are left out, because they run anyway. With limits per key, jobs with a key wait.
local ready, jobs, reruns, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local delayed, retries, shards, horizon = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local name, cursor, last, group, most, keep_ms, near = unpack(ARGV)
local limits, dues, waits = limits_in(redis.call('GET', shards) or ARGV[8]), {}, nil
local read_to
-- Whether a retry of this very job is alive in the group; there may be one of another job with its id.
local function has_retry(member, record)
  local stored = redis.call('HGET', jobs, member)
  return stored and life_behind(ready, stored) == life_of(record)
end
for _, info in ipairs(redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
  local fields = {}
  for n = 1, #info, 2 do fields[info[n]] = info[n + 1] end
  if fields['name'] == group then read_to = fields['last-delivered-id'] end
end
if not read_to then return {} end
local now, rerun, left_out = now_ms(), 0, 0
if last == '' then last = (redis.call('XREVRANGE', ready, '+', '-', 'COUNT', 1)[1] or {cursor})[1] end
local stored = redis.call('HGET', reruns, name)
if stored then
  cursor, last, rerun, left_out = string.match(stored, '(%S+) (%S+) (%d+) (%d+)')
end
local before, found = rerun, redis.call('XRANGE', ready, '(' .. cursor, last, 'COUNT', most)
local is_all = #found < tonumber(most)
for _, one in ipairs(found) do
  local entry, fields = one[1], one[2]
  if #fields == 8 then -- a retry, or an entry of an earlier rerun, has more fields
    local member, record = fields[2] .. '\31' .. group, fields[8]
    local waiting = member .. '\31' .. entry
    if after(entry, read_to) or has_retry(member, record) or redis.call('HEXISTS', jobs, waiting) == 1
      or #redis.call('XPENDING', ready, group, entry, entry, 1) > 0 then
      left_out = left_out + 1
    elseif limits and key_of(record) then -- the leader promotes it as its key allows
      waits = waiting
      redis.call('ZADD', delayed, now, waits)
      redis.call('HSET', jobs, waits, record)
      dues[#dues + 1], rerun = now, rerun + 1
    elseif emit(ready, member, now, record) then
      rerun = rerun + 1
    else -- the stream refused it: the next call continues from here
      is_all = false
      break
    end
  end
  cursor = entry
end
redis.call('HSET', reruns, name, string.format('%s %s %.0f %.0f', cursor, last, rerun, left_out))
redis.call('PEXPIRE', reruns, keep_ms)
count(counts, 'promoted', rerun - before - #dues)
count_retries(retries, dues, 1)
if waits then hint_due(near, horizon, now, waits) end
tell_came()
return {is_all and 1 or 0, tonumber(rerun), tonumber(left_out)}
