-- Delete every key of a shard whose topic is being removed.
-- KEYS: 1 shards, then fence and all other keys of the shard
-- ARGV: 1 terms of a topic that is being removed, 2 "last" to remove the fence too, after which producers may write again
-- Returns: how many were deleted; -1 the topic is not being removed, or no longer: nothing was done.
-- The fence is checked in the same step, so that a slow remover deletes nothing of a topic that was made since. UNLINK
-- frees the memory in the background, however much there is.
local shards, keys = KEYS[1], KEYS
local terms, is_last = ARGV[1], ARGV[2] == 'last'
if redis.call('GET', shards) ~= terms then return -1 end
local function drop(key) return redis.call('UNLINK', key) end
local dropped = 0
for n = is_last and 1 or 3, #keys do dropped = dropped + drop(keys[n]) end
return dropped
