-- Acknowledge up to 500 finished deliveries of one group, forget the finished jobs, trim the stream.
-- uses: clock, owned, parts, finish, trim
-- KEYS: 1 ready, 2 jobs
-- ARGV: 1 group, 2 consumer, 3 server ms until which no other worker can have claimed them, 4 retention_ms,
--       then for each delivery: entry id, member
-- Returns: how many were acknowledged; fewer than asked means that others had been given to another worker.
-- Up to the named moment the deliveries are surely the caller's, and looking at each owner is spared.
local ready, jobs = KEYS[1], KEYS[2]
local group, consumer, safe_until, retention_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()
local entries, members = {}, {}
for n = 5, #ARGV, 2 do
  if now <= safe_until or owns(ready, group, consumer, ARGV[n]) then
    entries[#entries + 1] = ARGV[n]
    members[#members + 1] = ARGV[n + 1]
  end
end
if #entries == 0 then return 0 end
local acked = redis.call('XACK', ready, group, unpack(entries))
if acked == 0 then return 0 end
finish(ready, jobs, group, entries, members)
trim(ready, retention_ms, now)
return acked
