-- Take a topic off the list, unless it was changed meanwhile, and note the change.
-- uses: change
-- KEYS: 1 topics
-- ARGV: 1 channel for changes, 2 topic, 3 field that tells the last change, 4 settings as they were read
-- Returns: 1 it is no longer on the list, 0 other settings are there.
local topics = KEYS[1]
local changes, topic, version, stored = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local found = redis.call('HGET', topics, topic)
if not found then return 1 end
if found ~= stored then return 0 end
redis.call('HDEL', topics, topic)
note_change(topics, version)
redis.call('PUBLISH', changes, topic)
return 1
