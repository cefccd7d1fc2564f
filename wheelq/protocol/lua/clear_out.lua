-- Clear a shard of what the dead leave: consumers that hold nothing and have been silent for long, and dead jobs that
-- are too old or too many.
-- uses: clock, full, dead, exhume, trim_dead
-- KEYS: 1 ready, 2 dead, 3 buried
-- ARGV: 1 group, 2 ms of silence, 3 dead_retention_ms, 4 most dead jobs
-- Returns: {consumers removed, dead jobs removed}.
-- One step for each consumer's look and removal: removing one that holds a delivery would lose that job.
local ready, dead, buried = KEYS[1], KEYS[2], KEYS[3]
local group, silent_ms, dead_retention_ms, dead_max = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
write_though_full(ready)
local removed = 0
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', ready, group)) do
  local fields = {}
  for n = 1, #info, 2 do fields[info[n]] = info[n + 1] end
  if fields['pending'] == 0 and fields['idle'] > silent_ms then
    redis.call('XGROUP', 'DELCONSUMER', ready, group, fields['name'])
    removed = removed + 1
  end
end
return {removed, trim_dead(dead, buried, dead_retention_ms, dead_max, now_ms())}
