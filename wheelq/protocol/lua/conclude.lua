-- Acknowledge up to 500 finished deliveries of one group, as `ack` does, and keep a record of the finished jobs.
-- uses: clock, stored, owned, parts, pack, field, kept_record, without, life, keep_done, forget, finish, trim, tell, count, concerns
-- KEYS: 1 ready, 2 jobs, 3 done, 4 ended, 5 progress, 6 news, 7 counts
-- ARGV: 1 group, 2 consumer, 3 retention_ms, 4 keep_done_ms (0: keep nothing, only remove the progress that handlers
--       reported), then for each delivery: entry id, member, started_ms, result,
--       record of a retried job as its producer made it, its earlier attempts or ""; then, if the last of them were
--       dropped without running, how many
-- Returns: how many were acknowledged; fewer than asked means that the rest had been given to another worker.
-- The owner of each delivery is always looked up, so that one acknowledged before is not recorded a second time.
local ready, jobs, done, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local progress, news, counts = KEYS[5], KEYS[6], KEYS[7]
local group, consumer, retention_ms, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()
local entries, members, notes, ids, kept, expired = {}, {}, {}, {}, {}, 0
local dropped_from = #ARGV % 6 == 5 and #ARGV - 6 * ARGV[#ARGV] or #ARGV
for n = 5, #ARGV - 5, 6 do
  local entry, member = ARGV[n], ARGV[n + 1]
  if owns(ready, group, consumer, entry) then
    local id = string.match(member, '^[^\31]*')
    entries[#entries + 1], members[#members + 1] = entry, member
    ids[#ids + 1], notes[#notes + 1] = id, id .. '\31' .. group
    -- A retry of another group was only skipped. What did not run leaves nothing: it is not done.
    if concerns(member, group) then
      if n >= dropped_from then expired = expired + 1 else kept[#kept + 1] = {entry, id, unpack(ARGV, n + 2, n + 5)} end
    end
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
trim(ready, retention_ms, now, counts)
tell_ended(news, ids)
count(counts, 'done\31' .. group, #kept)
count(counts, 'expired\31' .. group, expired)
return #entries
