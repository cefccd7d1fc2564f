-- From now on, let only producers and leaders that know the topic's new terms write to a shard.
-- uses: full, score, held
-- KEYS: 1 shards, 2 delayed, 3 lease, 4 fence
-- ARGV: 1 the topic's terms, which begin with its number of shards, 2 version of the topic that has them
-- Returns: {due_ms of the last job that waits here, "0" when none does; version of the terms in force here; 1 if they
--          were in force before}. A version above the caller's means that a later change was here first, and nothing was
--          done.
-- Afterwards no job comes here by an older way of choosing shards, so the number of such jobs can only fall.
-- The leader loses the lease, and has to come back with these terms: it knew others, or leads under these by former
-- settings, because they were not published. (By SET, because producers may not DEL.)
local shards, delayed, lease, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local terms, version = ARGV[1], tonumber(ARGV[2])
local last_due = last_of(delayed)
local known = tonumber(redis.call('GET', fence) or 0) or 0
if known > version then return {last_due, known, 0} end
local was_here, is_led = redis.call('GET', shards) == terms, redis.call('GET', lease)
local is_new = not was_here or known < version
if is_new or is_led then write_though_full(delayed) end
if is_new then redis.call('SET', shards, terms) end
if is_new then redis.call('SET', fence, ARGV[2]) end
if is_led then redis.call('SET', lease, '', 'PX', 1) end
return {last_due, version, was_here and 1 or 0}
