-- Change a topic's settings, unless they were changed meanwhile, and tell everyone.
-- uses: full, change, hint
-- KEYS: 1 topics
-- ARGV: 1 channel for changes, 2 topic, 3 field that tells the last change, 4 settings that the change started from, 5 new settings
-- Returns: 1 changed, 0 other settings are there.
local topics = KEYS[1]
local changes, topic, version, before, after = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if redis.call('HGET', topics, topic) ~= before then return 0 end
write_though_full(topics)
redis.call('HSET', topics, topic, after)
note_change(topics, version)
hint(changes, topic)
return 1
