-- Bring the clock of HTTP leases up to what a server has measured, and tell what it shows.
-- uses: clock, full
-- KEYS: 1 lease_clock
-- ARGV: 1 what it shows by the caller's reckoning, in ms, or "" without one, 2 the era of that reckoning, 3 longest lease
--       in ms
-- Returns: {what it shows in ms, its era, now_ms}.
-- One step, so that the furthest of several reckonings holds. The clock starts at the server's time and then follows the
-- callers' measurements, never the server. If the server's clock is set back, this clock is ahead of it, and no delivery
-- can begin in the server's future. So it starts again at the server's time: once every earlier lease must have ended,
-- or at once if it is ahead by more than half the longest lease.
local clock = KEYS[1]
local reckoned, era, longest = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local TOLERATED = 1000
local now = now_ms()
write_though_full(clock)
local stored = redis.call('HMGET', clock, 'ms', 'era', 'ahead_since')
local ms, ahead_since = tonumber(stored[1] or nil), tonumber(stored[3] or nil)
if not ms then
  ms, era = reckoned or now, era ~= '' and era or now_us()
else
  if reckoned and era == stored[2] and reckoned > ms then ms = reckoned end
  era = stored[2]
end
if ms - now <= TOLERATED then ahead_since = nil else ahead_since = ahead_since or ms end
if ahead_since and (ms - ahead_since > longest or ms - now > longest / 2) then
  ms, era, ahead_since = now, now_us(), nil
end
redis.call('HSET', clock, 'ms', string.format('%.0f', ms), 'era', era,
  'ahead_since', ahead_since and string.format('%.0f', ahead_since) or '')
return {ms, era, now}
