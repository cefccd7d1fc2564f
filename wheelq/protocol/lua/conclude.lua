-- Acknowledge up to 500 finished deliveries of one group, as `ack` does, and keep what is to be known of the jobs.
-- uses: clock, owned, parts, pack, keep_done, forget, finish, trim, tell
-- KEYS: 1 ready, 2 jobs, 3 done, 4 ended, 5 progress, 6 news
-- ARGV: 1 group, 2 consumer, 3 retention_ms, 4 keep_done_ms (0: keep nothing, only tidy up what handlers said of their
--       progress), then for each delivery: entry id, member, started_ms, result,
--       record of a retried job as its producer made it
-- Returns: how many were acknowledged; fewer than asked means that others had been given to another worker.
-- Whose each delivery is, is always looked at: one that was acknowledged before must not be kept a second time.
local ready, jobs, done, ended, progress, news = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local group, consumer, retention_ms, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()
local entries, members, notes, ids, kept = {}, {}, {}, {}, {}
for n = 5, #ARGV, 5 do
  local entry, member = ARGV[n], ARGV[n + 1]
  if owns(ready, group, consumer, entry) then
    local id, only_group = string.match(member, '^([^\31]*)\31?(.*)$')
    entries[#entries + 1], members[#members + 1] = entry, member
    ids[#ids + 1], notes[#notes + 1] = id, id .. '\31' .. group
    -- The retry of another group was only passed over.
    if only_group == '' or only_group == group then kept[#kept + 1] = {entry, id, unpack(ARGV, n + 2, n + 4)} end
  end
end
if #entries == 0 then return 0 end
redis.call('XACK', ready, group, unpack(entries))
redis.call('HDEL', progress, unpack(notes))
if keep_ms > 0 then
  forget_done(done, ended, now - keep_ms, 2 * #entries)
  keep_done(ready, jobs, done, ended, group, consumer, now, kept)
end
finish(ready, jobs, group, entries, members)
trim(ready, retention_ms, now)
tell_ended(news, ids)
return #entries
