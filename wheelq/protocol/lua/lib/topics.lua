-- The registry of topics.

-- part: change
-- note_change(topics, version): writes the time (us) into the field `version` of the hash, to show that topics have changed.
-- It is a time and not a count, because after a failover that lost a change, a count would reach the same number again.
local function note_change(topics, version)
  local time = redis.call('TIME')
  redis.call('HSET', topics, version, time[1] .. string.format('%06d', time[2]))
end
