-- Acknowledge up to 500 finished deliveries of one group, as `ack` does, and keep a record of the finished jobs.
-- uses: clock, full, stored, owned, parts, pack, field, kept_record, without, life, head_parts, keep_done, forget, unfinished, finish, trim, hint, permits, tell, count, concerns, outgoing, followers, bundles, ended_members
-- KEYS: 1 ready, 2 jobs, 3 done, 4 ended, 5 progress, 6 news, 7 counts, 8 outgoing, 9 bundles (only if a job
--       is a member of one)
-- ARGV: 1 group, 2 consumer, 3 retention_ms, 4 keep_done_ms (0: keep nothing, only remove the progress that handlers
--       reported), 5 how many of the last were dropped without running, 6 near channel, 7 how many deliveries, 8 server ms
--       until which no other worker can have claimed them, then for each: entry id, member; if something is kept,
--       started_ms, result, record of a retried job as its producer made it, its earlier attempts or "", its attempt; with
--       9, the life of a member of a bundle, or ""; then for each follower: the number of its delivery, and what `send_on`
--       takes
-- Returns: {how many were acknowledged, then for each follower its entry in `outgoing` and due time, "" if its delivery
--          had been given to another worker, "full" if `outgoing` has no room: then its delivery was not acknowledged; then
--          the entries of reports of bundles in `outgoing`, and their values}.
-- If they leave followers or results, the owner of each delivery is looked up, so that one acknowledged before is not
-- recorded a second time. A delivery is acknowledged and leaves its followers in one step, or neither.
local ready, jobs, done, ended = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local progress, news, counts, outgoing, bundles = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local group, consumer, retention_ms, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local near, FIRST, FULL = ARGV[6], 9, 'full'
local now, amount, has_progress = now_ms(), tonumber(ARGV[7]), redis.call('EXISTS', progress) == 1
local entries, members, notes, ids, kept, expired, others = {}, {}, {}, {}, {}, 0, 0
local lives, outcomes, SIZE = {}, {}, (keep_ms > 0 and 7 or 2) + (bundles and 1 or 0)
local behind_last = FIRST + SIZE * amount
local has_followers = #ARGV >= behind_last
local wanted = has_followers and wants(ARGV, behind_last) or {}
local room, states = has_followers and room_in(outgoing) or 0, {}
local dropped_behind = amount - ARGV[5]
local may_be_taken = now > tonumber(ARGV[8])
local is_safe = not has_followers and keep_ms == 0 and not may_be_taken
for d = 1, amount do
  local n = FIRST + SIZE * (d - 1)
  local entry, member = ARGV[n], ARGV[n + 1]
  local cut = string.find(member, '\31', 1, true)
  local id = cut and string.sub(member, 1, cut - 1) or member
  local is_mine = is_safe or owns(ready, group, consumer, entry, nil, may_be_taken and id)
  states[d] = is_mine and ((wanted[d] or 0) <= room or FULL) or ''
  if states[d] == true then
    room = room - (wanted[d] or 0)
    local place, has_run = #entries + 1, d <= dropped_behind
    entries[place], members[place], ids[place] = entry, member, id
    notes[place] = has_progress and id .. '\31' .. group
    outcomes[place], lives[place] = has_run and 'done' or 'cancelled', bundles and ARGV[n + SIZE - 1] or ''
    -- A retry of another group was only skipped. What did not run leaves nothing: it is not done.
    if cut and not concerns(member, group) then
      others = others + 1
    elseif not has_run then
      expired = expired + 1
    elseif keep_ms > 0 then
      kept[#kept + 1] = {entry, id, unpack(ARGV, n + 2, n + 6)}
    end
  end
end
local reply = {#entries}
if has_followers then
  write_though_full(ready)
  for _, one in ipairs(send_all_on(outgoing, near, ARGV, behind_last, states)) do reply[#reply + 1] = one end
end
if #entries == 0 then return reply end
local acked = redis.call('XACK', ready, group, unpack(entries))
reply[1] = acked
if acked == 0 then return reply end
if has_progress then redis.call('HDEL', progress, unpack(notes)) end
if keep_ms > 0 then
  forget_done(done, ended, now - keep_ms, 2 * #entries)
  keep_done(ready, jobs, done, ended, group, consumer, now, kept)
end
local finished, infos, other_groups = finish(ready, jobs, group, entries, members)
give_back(ready, group, entries, other_groups)
trim(ready, retention_ms, now, counts, infos)
tell_ended(news, ids)
count(counts, 'done\31' .. group, acked - expired - others)
count(counts, 'expired\31' .. group, expired)
local reports = bundles and count_finished(bundles, outgoing, near, lives, ids, finished, outcomes) or {}
for _, one in ipairs(reports) do reply[#reply + 1] = one end
return reply
