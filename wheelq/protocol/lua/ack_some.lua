-- Acknowledge finished deliveries of one group in many shards, forget the finished jobs, trim the streams.
-- uses: clock, stored, owned, parts, unfinished, finish, hint, permits, trim, count, concerns, ack
-- KEYS: for each shard 3: ready, jobs, counts
-- ARGV: 1 group, 2 consumer, then for each shard, as ack.lua has them: server ms until which no other worker can have
--       claimed its deliveries, retention_ms, how many of the last were dropped without running, how many there are, then
--       for each: entry id, member; up to 500 in all
-- Returns: for each shard, in order: how many were acknowledged, or the text of the error that it met.
-- An error in one shard must not keep the others from their answers.
local group, consumer, at, replies = ARGV[1], ARGV[2], 3, {}
for n = 1, #KEYS / 3 do
  local ready, jobs, counts = KEYS[3 * n - 2], KEYS[3 * n - 1], KEYS[3 * n]
  local safe_until, retention_ms, dropped, from = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), at + 4
  at = from + 2 * tonumber(ARGV[at + 3])
  local is_done, reply = pcall(function()
    return ack_all(ready, jobs, counts, group, consumer, safe_until, retention_ms, dropped, ARGV, from, at - 1)
  end)
  replies[n] = is_done and reply or tostring(type(reply) == 'table' and reply['err'] or reply)
end
return replies
