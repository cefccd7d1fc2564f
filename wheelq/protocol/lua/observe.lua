-- Add what a process has measured to the histograms of all processes.
-- uses: clock
-- KEYS: 1 histograms, 2 measured
-- ARGV: 1 name of the process, 2 serial number of this call, then for each series: its name, increments of its figures
--       with a space between
-- Returns: 1 added, 0 they were added before.
-- The last serial number of each process is kept, so a call that is repeated after a lost reply adds nothing.
-- Series and processes that measured nothing for an hour are forgotten, up to 100 in a call.
local histograms, measured = KEYS[1], KEYS[2]
local sender, number = '\31' .. ARGV[1], tonumber(ARGV[2])
local IDLE_MS, AT_ONCE = 3600000, 100
if (tonumber(redis.call('HGET', histograms, sender) or 0) or 0) >= number then return 0 end
local now, writes, seen = now_ms(), {sender, ARGV[2]}, {now_ms(), sender}
local idle = redis.call('ZRANGEBYSCORE', measured, '-inf', now - IDLE_MS, 'LIMIT', 0, AT_ONCE)
if #idle > 0 then
  redis.call('HDEL', histograms, unpack(idle))
  redis.call('ZREM', measured, unpack(idle))
end
for n = 3, #ARGV, 2 do
  local figures, place = {}, 0
  for figure in string.gmatch(redis.call('HGET', histograms, ARGV[n]) or '', '%d+') do figures[#figures + 1] = figure end
  for increment in string.gmatch(ARGV[n + 1], '%d+') do
    place = place + 1
    figures[place] = string.format('%.0f', (figures[place] or 0) + increment)
  end
  writes[#writes + 1], writes[#writes + 2] = ARGV[n], table.concat(figures, ' ')
  seen[#seen + 1], seen[#seen + 2] = now, ARGV[n]
end
redis.call('HSET', histograms, unpack(writes))
redis.call('ZADD', measured, unpack(seen))
return 1
