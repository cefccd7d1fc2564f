-- Measure up to 50 shards: what `counts` returns, and how much is due soon, who leads, and what was counted.
-- uses: clock, fields, stored, parts, score, by, retries, unfinished, hint, permits, held, group, tally, census
-- KEYS: for each shard: delayed, ready, dead, jobs, retries, lease, counts, occurrences, outgoing
-- ARGV: ends of spans, in ms from now
-- Returns: for each shard {what counts.lua returns, {how many jobs are due up to the end of each span, overdue ones among
--          them}, 1 if it has a leader, {field, value, ...} of its counts, how many recurring jobs have
--          a next occurrence, how many followers are outgoing, how often the first of them was claimed}.
-- It does not look at single jobs, so a shard takes about 30 us, however many it holds.
local MOST_FIELDS, reply, now = 500, {}, now_ms()
for n = 1, #KEYS, 9 do
  local delayed, ready, dead, jobs, retries = KEYS[n], KEYS[n + 1], KEYS[n + 2], KEYS[n + 3], KEYS[n + 4]
  local lease, counts, occurrences, outgoing = KEYS[n + 5], KEYS[n + 6], KEYS[n + 7], KEYS[n + 8]
  local due = {}
  local held = held_in(delayed) -- all of these are overdue
  for m, ahead in ipairs(ARGV) do due[m] = held + redis.call('ZCOUNT', delayed, '-inf', string.format('%.1f', by(now + ahead))) end
  local counted = redis.pcall('HSCAN', counts, 0, 'COUNT', MOST_FIELDS)[2] or {} -- an error: another program has the key
  local left = redis.pcall('XLEN', outgoing) -- an error: another program has the key
  local first = type(left) == 'number' and left > 0 and redis.call('XRANGE', outgoing, '-', '+', 'COUNT', 1)[1]
  reply[#reply + 1] = {census(delayed, ready, dead, jobs, retries), due, redis.call('EXISTS', lease), counted,
    redis.call('ZCARD', occurrences), type(left) == 'number' and left or 0, first and tonumber(first[2][22]) or 0}
end
return reply
