-- Register a topic, unless it is registered already, and tell everyone.
-- uses: change, hint
-- KEYS: 1 topics
-- ARGV: 1 channel for changes, 2 topic, 3 field that tells the last change, 4 settings
-- Returns: the settings now in force (those found, if the topic was registered).
-- Atomic, so that two producers with different defaults agree on one.
local topics = KEYS[1]
local changed, topic, version, settings = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('HSETNX', topics, topic, settings) == 0 then return redis.call('HGET', topics, topic) end
note_change(topics, version)
hint(changed, topic)
return settings
