-- Acknowledge up to 500 finished deliveries of one group, forget the finished jobs, trim the stream.
-- uses: clock, stored, owned, parts, unfinished, finish, hint, permits, trim, count, concerns, ack
-- KEYS: 1 ready, 2 jobs, 3 counts (may be left out)
-- ARGV: 1 group, 2 consumer, 3 server ms until which no other worker can have claimed them, 4 retention_ms,
--       then for each delivery: entry id, member; then, if the last of them were dropped without running, how many
-- Returns: how many were acknowledged; fewer than asked means that the rest had been given to another worker.
-- Until the moment in 3 no other worker can own the deliveries, so the script does not look up each owner.
local ready, jobs, counts = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, safe_until, retention_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local dropped = #ARGV % 2 == 1 and tonumber(ARGV[#ARGV]) or 0
return ack_all(ready, jobs, counts, group, consumer, safe_until, retention_ms, dropped, ARGV, 5, #ARGV - #ARGV % 2)
