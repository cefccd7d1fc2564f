-- Make a topic known, unless it is, and tell everyone.
-- KEYS: 1 topics
-- ARGV: 1 channel for changes, 2 topic, 3 field that counts changes, 4 settings
-- Returns: the settings as they now stand (those found, if the topic was known).
-- Atomic, so that two producers with different defaults agree on one.
local topics = KEYS[1]
local changed, topic, version, settings = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('HSETNX', topics, topic, settings) == 0 then return redis.call('HGET', topics, topic) end
redis.call('HINCRBY', topics, version, 1)
redis.call('PUBLISH', changed, topic)
return settings
