-- Write down where followers are being sent, before they are.
-- uses: clock, full, hint, outgoing, sent_again
-- KEYS: 1 outgoing
-- ARGV: for each: entry id, tag, shard ("" for none yet), terms, refusals
-- Returns: for each its new entry id, or "" if it is not there any more: somebody else has claimed or carried it.
-- A tag counts from the moment at which it was written down with its shard: what was sent with another has been answered.
local outgoing = KEYS[1]
local reply, now = {}, string.format('%.0f', now_ms())
write_though_full(outgoing)
for n = 1, #ARGV, 5 do
  local id = ARGV[n]
  local entry = redis.call('XRANGE', outgoing, id, id)[1]
  local tag, shard = ARGV[n + 1], ARGV[n + 2]
  local changes = {tag = tag, shard = shard, terms = ARGV[n + 3], refusals = ARGV[n + 4]}
  if entry and (entry[2][14] ~= tag or entry[2][16] ~= shard) then changes.placed = shard ~= '' and now or '' end
  reply[#reply + 1] = entry and sent_again(outgoing, entry, changes) or ''
end
return reply
