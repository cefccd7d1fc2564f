-- Promote the named members that are due in many shards.
-- uses: clock, full, leader, score, held, by, ranked, emit, lateness, retries, count, promote, named, hint, came
-- KEYS: for each shard 7: lease, delayed, jobs, ready, dead, retries, counts
-- ARGV: for each shard: token, lease_ms ("": not to be prolonged), how many members, the members; up to 500 in all
-- Returns: for each shard, in order: what promote.lua returns, or the text of the error that it met.
-- Each shard has its own check of the lease and its own answer, as if each were called alone: an error in one must not
-- keep the others from their jobs, nor hide which jobs the others promoted.
local at, replies = 1, {}
write_though_full((unpack(KEYS, 4, 4)))
for n = 1, #KEYS / 7 do
  local token, lease_ms, from = ARGV[at], ARGV[at + 1], at + 3
  at = from + tonumber(ARGV[at + 2])
  local is_done, reply = pcall(function()
    return promote_named(token, lease_ms, ARGV, from, at - 1, unpack(KEYS, 7 * n - 6, 7 * n))
  end)
  replies[n] = is_done and reply or tostring(type(reply) == 'table' and reply['err'] or reply)
end
tell_came()
return replies
