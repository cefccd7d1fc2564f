-- The registry of topics.

-- part: change
-- note_change(topics, version): writes the time (us) into the field `version` of the hash, to show that topics have changed.
-- It is a time and not a count, because after a failover that lost a change, a count would reach the same number again.
-- Two changes never have the same number, not even if the clock stands still or was set back.
local function note_change(topics, version)
  local time, last = redis.call('TIME'), redis.call('HGET', topics, version) or ''
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  if string.find(last, '^%d+$') and #last <= 16 then now = math.max(now, tonumber(last) + 1) end
  redis.call('HSET', topics, version, string.format('%.0f', now))
end
