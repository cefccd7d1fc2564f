-- End the removal of a group: trim the entries that only it still needed, and delete the last traces of it. In the
-- first minute of other groups their entries stay, for groups that are still to come (see make_group).
-- uses: full, clock, parts, trim
-- KEYS: 1 ready, 2 groups, 3 order, 4 dead, 5 counts
-- ARGV: 1 group, 2 retention_ms
-- Returns: 1 that was all, 2 call again, there is more to trim, 0 the group is here again: begin its removal again.
local ready, groups, order, dead, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, retention_ms = ARGV[1], tonumber(ARGV[2])
local MOST_AT_ONCE = 20000 -- about a millisecond
local last = redis.call('HGET', groups, group)
if not last or last == '' then return 1 end
local others = redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}
for _, info in ipairs(others) do
  if info[2] == group then return 0 end
end
write_though_full(ready)
if #others > 0 then
  if select(2, trim(ready, retention_ms, now_ms(), counts)) then return 2 end
elseif redis.call('EXISTS', ready) == 1 then
  local ms, seq = parts(last)
  local least = string.format('%.0f-%.0f', ms, seq + 1)
  local kept = string.format('%.0f-0', math.max(now_ms() - retention_ms, 0))
  local is_aged = retention_ms > 0 and ms - now_ms() <= retention_ms -- as in `trim`
  if is_aged and after(least, kept) then least = kept end
  if redis.call('XTRIM', ready, 'MINID', '~', least, 'LIMIT', MOST_AT_ONCE) >= MOST_AT_ONCE then return 2 end
  redis.call('XTRIM', ready, 'MINID', least)
  if redis.call('XLEN', ready) == 0 then redis.call('UNLINK', ready) end
end
if redis.call('XLEN', dead) == 0 then redis.call('UNLINK', dead) end
redis.call('UNLINK', order)
for _, outcome in ipairs({'done', 'retried', 'mismatched', 'buried', 'expired', 'cancelled', 'recovered'}) do
  redis.call('HDEL', counts, outcome .. '\31' .. group)
end
redis.call('HDEL', groups, group)
return 1
