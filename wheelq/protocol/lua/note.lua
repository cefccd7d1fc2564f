-- Store the progress that handlers report of running jobs.
-- uses: owned, handed
-- KEYS: 1 ready, 2 progress
-- ARGV: 1 group, 2 consumer, 3 ms after which it expires, unless the job ends before, then for each of up to 500
--       jobs: entry id, member, note, number of the lease (only of leased deliveries, whose member is compared; else "")
-- Returns: for each, 1 written, 0 skipped: it is no longer the caller's, and may be finished.
local ready, progress = KEYS[1], KEYS[2]
local group, consumer, keep_ms = ARGV[1], ARGV[2], ARGV[3]
local reply, is_any = {}, false
for n = 4, #ARGV, 4 do
  local entry, member, lease = ARGV[n], ARGV[n + 1], ARGV[n + 3] ~= '' and ARGV[n + 3]
  local is_theirs = owns(ready, group, consumer, entry, lease) and (not lease or record_named(ready, entry, member))
  if is_theirs then
    redis.call('HSET', progress, string.match(member, '^[^\31]*') .. '\31' .. group, ARGV[n + 2])
  end
  reply[#reply + 1], is_any = is_theirs and 1 or 0, is_any or is_theirs
end
if is_any then redis.call('PEXPIRE', progress, keep_ms) end
return reply
