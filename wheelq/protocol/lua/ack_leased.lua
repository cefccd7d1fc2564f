-- Acknowledge up to 500 leased deliveries of one group, keep a record of the finished jobs, trim the stream.
-- uses: clock, stored, leased, parts, pack, field, kept_record, without, life, keep_done, forget, finish, trim, tell, count, concerns
-- KEYS: 1 ready, 2 jobs, 3 done, 4 ended, 5 news, 6 counts, 7 progress
-- ARGV: 1 group, 2 consumer, 3 retention_ms, 4 keep_done_ms (0: keep nothing), 5 result of each, packed, or "", then for
--       each delivery: entry id, member, number of the lease; then, if the last of them were dropped without running, how
--       many
-- Returns: for each, 1 acknowledged, 0 this lease is over or was never given: nothing was done.
-- One step, so that only the holder of the lease can acknowledge the delivery.
local ready, jobs, done, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local news, counts, progress = KEYS[5], KEYS[6], KEYS[7]
local group, consumer, retention_ms, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()
local entries, members, ids, notes, kept, reply, expired = {}, {}, {}, {}, {}, {}, 0
local dropped_from = #ARGV % 3 == 0 and #ARGV - 3 * ARGV[#ARGV] or #ARGV
for n = 6, #ARGV - 2, 3 do
  local entry, member = ARGV[n], ARGV[n + 1]
  local is_theirs = is_leased(ready, group, consumer, entry, ARGV[n + 2])
  reply[#reply + 1] = is_theirs and 1 or 0
  if is_theirs then
    local id = string.match(member, '^[^\31]*')
    entries[#entries + 1], members[#members + 1], ids[#ids + 1] = entry, member, id
    notes[#notes + 1] = id .. '\31' .. group
    -- The consumer only skipped a retry of another group. Leases do not tell when work began.
    if concerns(member, group) then
      if n >= dropped_from then expired = expired + 1 else kept[#kept + 1] = {entry, id, '0', ARGV[5], '', ''} end
    end
  end
end
if #entries == 0 then return reply end
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
return reply
