-- Acknowledge up to 500 leased deliveries of one group, keep what is to be known of the jobs, trim the stream.
-- uses: clock, leased, parts, pack, keep_done, forget, finish, trim, tell
-- KEYS: 1 ready, 2 jobs, 3 done, 4 ended, 5 news
-- ARGV: 1 group, 2 consumer, 3 retention_ms, 4 keep_done_ms (0: keep nothing), then for each delivery: entry id, member,
--       number of the lease
-- Returns: for each, 1 acknowledged, 0 not leased so (any more): nothing was done.
-- One step, so that a delivery is acknowledged by whoever has it, and by nobody else.
local ready, jobs, done, ended, news = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, consumer, retention_ms, keep_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()
local entries, members, ids, kept, reply = {}, {}, {}, {}, {}
for n = 5, #ARGV, 3 do
  local entry, member = ARGV[n], ARGV[n + 1]
  local is_theirs = is_leased(ready, group, entry, ARGV[n + 2])
  reply[#reply + 1] = is_theirs and 1 or 0
  if is_theirs then
    local id, only_group = string.match(member, '^([^\31]*)\31?(.*)$')
    entries[#entries + 1], members[#members + 1], ids[#ids + 1] = entry, member, id
    -- The retry of another group was only passed over. When work began, and what came of it, nobody has said.
    if only_group == '' or only_group == group then kept[#kept + 1] = {entry, id, '0', '', ''} end
  end
end
if #entries == 0 then return reply end
redis.call('XACK', ready, group, unpack(entries))
if keep_ms > 0 then
  forget_done(done, ended, now - keep_ms, 2 * #entries)
  keep_done(ready, jobs, done, ended, group, consumer, now, kept)
end
finish(ready, jobs, group, entries, members)
trim(ready, retention_ms, now)
tell_ended(news, ids)
return reply
