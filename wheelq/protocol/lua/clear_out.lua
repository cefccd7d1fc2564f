-- Clean up to 25 shards: remove consumers that hold nothing and have long been silent, and dead jobs that are too old or
-- too many. Also tell when the first waiting job of each is due.
-- uses: clock, full, life, head_parts, fields, hint, outgoing, bundles, remove_dead, trim_dead
-- KEYS: for each shard: ready, dead, buried, delayed, bundles, outgoing
-- ARGV: 1 group, 2 ms of silence, then for each shard: dead_retention_ms, most dead jobs, near channel
-- Returns: for each shard {consumers removed, dead jobs removed, score of the first waiting job or ""}; nothing is removed
--          where there is no such group.
-- A consumer is checked and removed in one step, because removing one that holds a delivery would lose that job.
local group, silent_ms = ARGV[1], tonumber(ARGV[2])
local function remove_silent(ready)
  local consumers, removed = redis.pcall('XINFO', 'CONSUMERS', ready, group), 0
  if consumers['err'] then return nil end
  for _, info in ipairs(consumers) do
    local fields = fields_of(info)
    if fields['pending'] == 0 and fields['idle'] > silent_ms then
      redis.call('XGROUP', 'DELCONSUMER', ready, group, fields['name'])
      removed = removed + 1
    end
  end
  return removed
end
local reply = {}
for n = 1, #KEYS, 6 do
  local ready, dead, buried, delayed = KEYS[n], KEYS[n + 1], KEYS[n + 2], KEYS[n + 3]
  local bundles, outgoing = KEYS[n + 4], KEYS[n + 5]
  local place, ends = #reply + 1, {}
  if place == 1 then write_though_full(ready) end
  local removed = remove_silent(ready)
  local retention_ms, most = tonumber(ARGV[3 * place]), tonumber(ARGV[3 * place + 1])
  reply[place] = {removed or 0, removed and trim_dead(dead, buried, retention_ms, most, now_ms(), ends) or 0,
    redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2] or ''}
  if #ends > 0 then count_ends(bundles, outgoing, ARGV[3 * place + 2], ends) end
end
return reply
