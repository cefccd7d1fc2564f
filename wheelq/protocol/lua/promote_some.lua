-- Promote the named members that are due in many shards.
-- uses: clock, leader, score, held, by, ranked, emit, lateness, retries, count, promote, named, hint, came
-- KEYS: for each shard 7: lease, delayed, jobs, ready, dead, retries, counts
-- ARGV: 1 lease_ms, then for each shard: token, how many members, the members; up to 500 in all
-- Returns: for each shard, in order: what promote.lua returns, or the text of the error that it met.
-- Each shard has its own check of the lease and its own answer, as if each were called alone: an error in one must not
-- keep the others from their jobs, nor hide which jobs the others promoted.
local lease_ms, at, replies = ARGV[1], 2, {}
for n = 1, #KEYS / 7 do
  local token, from = ARGV[at], at + 2
  at = from + tonumber(ARGV[at + 1])
  local is_done, reply = pcall(function()
    return promote_named(token, lease_ms, ARGV, from, at - 1, unpack(KEYS, 7 * n - 6, 7 * n))
  end)
  replies[n] = is_done and reply or tostring(type(reply) == 'table' and reply['err'] or reply)
end
tell_came()
return replies
