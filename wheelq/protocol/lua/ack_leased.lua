-- Acknowledge up to 500 leased deliveries of one group, forget the finished jobs, trim the stream.
-- uses: clock, leased, parts, finish, trim
-- KEYS: 1 ready, 2 jobs
-- ARGV: 1 group, 2 retention_ms, then for each delivery: entry id, member, number of the lease
-- Returns: for each, 1 acknowledged, 0 not leased so (any more): nothing was done.
-- One step, so that a delivery is acknowledged by whoever has it, and by nobody else.
local ready, jobs = KEYS[1], KEYS[2]
local group, retention_ms = ARGV[1], tonumber(ARGV[2])
local entries, members, reply = {}, {}, {}
for n = 3, #ARGV, 3 do
  local is_theirs = is_leased(ready, group, ARGV[n], ARGV[n + 2])
  reply[#reply + 1] = is_theirs and 1 or 0
  if is_theirs then
    entries[#entries + 1] = ARGV[n]
    members[#members + 1] = ARGV[n + 1]
  end
end
if #entries == 0 then return reply end
redis.call('XACK', ready, group, unpack(entries))
finish(ready, jobs, group, entries, members)
trim(ready, retention_ms, now_ms())
return reply
