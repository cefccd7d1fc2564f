-- A whole script, `one`, for many shards in one call.

-- part: many
-- KEYS: the keys of each shard, as many for each
-- ARGV: 1 how many shards, then for each: how many arguments, the arguments
-- Returns: for each shard, in order: what the script returns, or the text of the error that it met, which must not keep
-- the others from their answers. On a replica the whole call fails, as a call for one shard does: it takes no writes.
local shards, at, replies = tonumber(ARGV[1]), 2, {}
local n_keys = #KEYS / shards
for n = 1, shards do
  local to = at + tonumber(ARGV[at])
  local is_done, reply = pcall(one, {unpack(KEYS, (n - 1) * n_keys + 1, n * n_keys)}, {unpack(ARGV, at + 1, to)})
  replies[n] = is_done and reply or tostring(type(reply) == 'table' and reply['err'] or reply)
  if not is_done and string.find(replies[n], 'READONLY', 1, true) then error(reply) end
  at = to + 1
end
return replies
