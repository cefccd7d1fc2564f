-- Let one group run again what this shard fired between two times: the next part of it.
-- uses: clock, parts, emit
-- KEYS: 1 ready, 2 jobs, 3 replays
-- ARGV: 1 name of the replay, 2 entry id behind which it begins, 3 entry id with which it ends ("" = with the last one here), 4 group,
--       5 most entries looked at (up to 500), 6 ms for which the replay is remembered
-- Returns: {1 if that was all, replayed so far, left out so far}; {} the group is not here.
-- How far the replay is, is kept here under its name, and moves in the same step: so a call repeated after a lost reply,
-- or by another producer, goes on behind what was done. Each entry is added anew for this group only, as a retry is.
-- Left out is what the group has yet to finish: it runs anyway.
local ready, jobs, replays = KEYS[1], KEYS[2], KEYS[3]
local name, cursor, last, group, most, keep_ms = unpack(ARGV)
local read_to
for _, info in ipairs(redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
  local fields = {}
  for n = 1, #info, 2 do fields[info[n]] = info[n + 1] end
  if fields['name'] == group then read_to = fields['last-delivered-id'] end
end
if not read_to then return {} end
local now, replayed, left_out = now_ms(), 0, 0
if last == '' then last = (redis.call('XREVRANGE', ready, '+', '-', 'COUNT', 1)[1] or {cursor})[1] end
local stored = redis.call('HGET', replays, name)
if stored then
  cursor, last, replayed, left_out = string.match(stored, '(%S+) (%S+) (%d+) (%d+)')
end
local found = redis.call('XRANGE', ready, '(' .. cursor, last, 'COUNT', most)
local is_all = #found < tonumber(most)
for _, one in ipairs(found) do
  local entry, fields = one[1], one[2]
  if #fields == 8 then -- else it is a retry, or of an earlier replay
    local member, record = fields[2] .. '\31' .. group, fields[8]
    if after(entry, read_to) or redis.call('HEXISTS', jobs, member) == 1
      or #redis.call('XPENDING', ready, group, entry, entry, 1) > 0 then
      left_out = left_out + 1
    elseif emit(ready, member, now, record) then
      replayed = replayed + 1
    else -- the stream refuses it: the replay goes on from here
      is_all = false
      break
    end
  end
  cursor = entry
end
redis.call('HSET', replays, name, string.format('%s %s %.0f %.0f', cursor, last, replayed, left_out))
redis.call('PEXPIRE', replays, keep_ms)
return {is_all and 1 or 0, tonumber(replayed), tonumber(left_out)}
