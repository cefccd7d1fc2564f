-- From now on, let only producers and leaders that know the topic's new terms write to a shard.
-- uses: full, score, held
-- KEYS: 1 shards, 2 delayed, 3 lease, 4 fence
-- ARGV: 1 the topic's terms, which begin with its number of shards, 2 version of the topic that has them, 3 "1" to take
--       the lease from the leader in any case
-- Returns: {due_ms of the last job that waits here, "0" when none does; version of the terms in force here}. A version
--          above the caller's means that a later change was here first, and nothing was done.
-- Afterwards no job comes here by an older way of choosing shards, so the number of such jobs can only fall.
-- A leader that knew other terms loses the lease, and has to come back with the new ones. (By SET, because producers may
-- not DEL.)
local shards, delayed, lease, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local terms, version = ARGV[1], tonumber(ARGV[2])
local last_due = last_of(delayed)
local known = tonumber(redis.call('GET', fence) or 0) or 0
if known > version then return {last_due, known} end
local has_changed = redis.call('GET', shards) ~= terms
if has_changed or known < version then
  write_though_full(delayed)
  redis.call('SET', shards, terms)
  redis.call('SET', fence, ARGV[2])
end
-- A leader may continue with former settings under terms that were not published: it hears of a later change with them.
if (has_changed or known < version or ARGV[3] == '1') and redis.call('GET', lease) then redis.call('SET', lease, '', 'PX', 1) end
return {last_due, version}
