-- Cancel the next part of the waiting jobs that are due in a range.
-- uses: clock, full, score, place, stretch, stretch_due, life, head_parts, hint, tell, count, outgoing, bundles
-- KEYS: 1 delayed, 2 jobs, 3 news, 4 replays, 5 bundles, 6 outgoing, 7 counts
-- ARGV: 1 name of this cancellation, 2 from (score), 3 to (score), 4 most members looked at (up to 500), 5 ms for which
--       its progress is kept, 6 near channel
-- Returns: {1 if that was all, cancelled so far}.
-- The progress is stored under the name and moves in the same step, so a repeated call continues where the last one
-- ended, and counts each job once. A job is either cancelled or promoted. Only jobs that wait for their first run are
-- cancelled, so retries stay.
local delayed, jobs, news, replays = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local bundles, outgoing, near, counts = KEYS[5], KEYS[6], ARGV[6], KEYS[7]
local name, from, to, limit, keep_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local cancelled, score, member = string.match(redis.call('HGET', replays, name) or '', '^(%d+) (%S+) (.*)$')
cancelled = tonumber(cancelled or 0)
if score == 'end' then return {1, cancelled} end
write_though_full(delayed)
local members, _, is_all, next_place = stretch_due(delayed, from, to, score, member, limit, false)
local ids, ends = {}, {}
for _, one in ipairs(members) do
  if not string.find(one, '\31', 1, true) then ids[#ids + 1] = one end
end
local may_be_members = #ids > 0 and redis.call('EXISTS', bundles) == 1
for _, record in ipairs(may_be_members and redis.call('HMGET', jobs, unpack(ids)) or {}) do
  if record and bundle_of(record) then ends[#ends + 1] = {life_of(record), 'cancelled'} end
end
if #ids > 0 then
  redis.call('ZREM', delayed, unpack(ids))
  redis.call('HDEL', jobs, unpack(ids))
  tell_ended(news, ids)
  count(counts, 'cancelled\31', #ids)
  count_ends(bundles, outgoing, near, ends)
end
cancelled = cancelled + #ids
redis.call('HSET', replays, name, string.format('%.0f %s', cancelled, next_place))
redis.call('PEXPIRE', replays, keep_ms)
return {is_all and 1 or 0, cancelled}
