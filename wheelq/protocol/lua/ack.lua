-- Acknowledge up to 500 finished deliveries of one group, forget the finished jobs, trim the stream.
-- uses: clock, stored, owned, parts, finish, trim, count, concerns
-- KEYS: 1 ready, 2 jobs, 3 counts (may be left out)
-- ARGV: 1 group, 2 consumer, 3 server ms until which no other worker can have claimed them, 4 retention_ms,
--       then for each delivery: entry id, member; then, if the last of them were dropped without running, how many
-- Returns: how many were acknowledged; fewer than asked means that the rest had been given to another worker.
-- Until the moment in 3 no other worker can own the deliveries, so the script does not look up each owner.
local ready, jobs, counts = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, safe_until, retention_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()
local is_safe = now <= safe_until
local entries, members, held, expired, others = {}, {}, 0, 0, 0
local dropped_from = #ARGV % 2 == 1 and #ARGV - 2 * ARGV[#ARGV] or #ARGV
for n = 5, #ARGV - 1, 2 do
  local entry, member = ARGV[n], ARGV[n + 1]
  if is_safe or owns(ready, group, consumer, entry) then
    held = held + 1
    entries[held], members[held] = entry, member
    if not concerns(member, group) then
      others = others + 1
    elseif n >= dropped_from then
      expired = expired + 1
    end
  end
end
if held == 0 then return 0 end
local acked = redis.call('XACK', ready, group, unpack(entries))
if acked == 0 then return 0 end
finish(ready, jobs, group, entries, members)
trim(ready, retention_ms, now, counts)
count(counts, 'done\31' .. group, acked - expired - others)
count(counts, 'expired\31' .. group, expired)
return acked
