-- trim_dead(dead, buried, retention_ms, most, now): removes dead jobs that are too old or too many, up to 20 of either
-- at a time, oldest first. 0 is no limit. More go than come, and no call takes long.
local AT_ONCE = 20
local function trim_dead(dead, buried, retention_ms, most, now)
  local surplus = most > 0 and redis.call('XLEN', dead) - most or 0
  local found = {}
  if surplus > 0 then
    found = redis.call('XRANGE', dead, '-', '+', 'COUNT', math.min(surplus, AT_ONCE))
  elseif retention_ms > 0 then
    found = redis.call('XRANGE', dead, '-', string.format('%.0f', now - retention_ms), 'COUNT', AT_ONCE)
  end
  for _, entry in ipairs(found) do exhume(dead, buried, entry) end
  return #found
end
