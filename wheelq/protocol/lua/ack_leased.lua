-- Acknowledge up to 500 leased deliveries of one group, keep a record of the finished jobs, trim the stream.
-- uses: clock, full, stored, leased, handed, parts, pack, field, kept_record, without, life, head_parts, keep_done, forget, unfinished, finish, trim, hint, permits, tell, count, concerns, outgoing, followers, bundles, ended_members
-- KEYS: 1 ready, 2 jobs, 3 done, 4 ended, 5 news, 6 counts, 7 progress, 8 outgoing, 9 bundles (only if a job
--       is a member of one)
-- ARGV: 1 group, 2 consumer, 3 retention_ms, 4 keep_done_ms (0: keep nothing), 5 result of each, packed, or "", 6 how many
--       of the last were dropped without running, 7 near channel, 8 how many deliveries, then for each: entry id, member,
--       number of the lease; then for each follower: the number of its delivery, and what `send_on` takes
-- Returns: for each delivery, 1 acknowledged, 0 this lease is over, or was never given for this job: nothing was done,
--          2 nothing was done because `outgoing` has no room; then for each follower its entry in `outgoing` and due time,
--          or ""; then the entries of reports of bundles in `outgoing`, and their values.
-- One step, so that only the holder of the lease can acknowledge the delivery, and only with its followers.
local ready, jobs, done, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local news, counts, progress, outgoing, bundles = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local group, consumer, retention_ms, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local near, FIRST, NOT_THEIRS, ACKED, FULL = ARGV[7], 9, 0, 1, 2
local now, amount = now_ms(), tonumber(ARGV[8])
local entries, members, ids, notes, kept, reply, expired, outcomes = {}, {}, {}, {}, {}, {}, 0, {}
local behind_last = FIRST + 3 * amount
local has_followers = #ARGV >= behind_last
local wanted = has_followers and wants(ARGV, behind_last) or {}
local room, states, named = has_followers and room_in(outgoing) or 0, {}, {}
for d = 1, amount do
  local n = FIRST + 3 * d - 3
  local entry, member = ARGV[n], ARGV[n + 1]
  local record = not named[entry] and is_leased(ready, group, consumer, entry, ARGV[n + 2])
    and record_named(ready, entry, member)
  local is_theirs = record and (bundles or not bundle_of(record)) or false
  named[entry] = named[entry] or is_theirs -- the handle of a former lease does not count
  local has_room = (wanted[d] or 0) <= room
  states[d] = is_theirs and has_room or ''
  reply[d] = is_theirs and (has_room and ACKED or FULL) or NOT_THEIRS
  if reply[d] == ACKED then
    room = room - (wanted[d] or 0)
    local id = string.match(member, '^[^\31]*')
    entries[#entries + 1], members[#members + 1], ids[#ids + 1] = entry, member, id
    notes[#notes + 1] = id .. '\31' .. group
    outcomes[#ids] = d > amount - ARGV[6] and 'cancelled' or 'done'
    -- The consumer only skipped a retry of another group. Leases do not tell when work began.
    if concerns(member, group) then
      if d > amount - ARGV[6] then expired = expired + 1 else kept[#kept + 1] = {entry, id, '0', ARGV[5], '', ''} end
    end
  end
end
if has_followers then
  write_though_full(ready)
  for _, one in ipairs(send_all_on(outgoing, near, ARGV, behind_last, states)) do reply[#reply + 1] = one end
end
if #entries == 0 then return reply end
local lives = bundles and members_of(ready, entries)
redis.call('XACK', ready, group, unpack(entries))
redis.call('HDEL', progress, unpack(notes))
if keep_ms > 0 then
  forget_done(done, ended, now - keep_ms, 2 * #entries)
  keep_done(ready, jobs, done, ended, group, consumer, now, kept)
end
local finished, infos, other_groups = finish(ready, jobs, group, entries, members)
give_back(ready, group, entries, other_groups)
trim(ready, retention_ms, now, counts, infos)
tell_ended(news, ids)
count(counts, 'done\31' .. group, #kept)
count(counts, 'expired\31' .. group, expired)
local reports = lives and count_finished(bundles, outgoing, near, lives, ids, finished, outcomes) or {}
for _, one in ipairs(reports) do reply[#reply + 1] = one end
return reply
