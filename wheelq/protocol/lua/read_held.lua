-- Read new deliveries of a shard that this consumer holds.
-- uses: clock, score, by
-- KEYS: 1 ready, 2 order, 3 delayed
-- ARGV: 1 group, 2 consumer, 3 most deliveries
-- Returns: {0}: it no longer holds the shard, and nothing was read; or {1, id of the last entry that the group
--          was given, due_ms or "", {entry id, fields}, ...}. The due time is that of the first waiting job, if it is due
--          and not promoted yet: jobs that are due later have to wait for it.
-- The holder is checked in the same step, so a consumer that was frozen past its lease gets nothing out of turn.
local ready, order, delayed = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, count = ARGV[1], ARGV[2], ARGV[3]
if redis.call('HGET', order, 'owner') ~= consumer then return {0} end
local reply = {1, '', ''}
local found = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', count, 'STREAMS', ready, '>')
for _, entry in ipairs(found and found[1] and found[1][2] or {}) do
  reply[#reply + 1] = entry
  reply[2] = entry[1]
end
if #reply == 3 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
    local fields = {}
    for n = 1, #info, 2 do fields[info[n]] = info[n + 1] end
    if fields['name'] == group then reply[2] = fields['last-delivered-id'] end
  end
end
local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
if first[2] and tonumber(first[2]) <= by(now_ms()) then reply[3] = string.format('%.0f', due_of(first[2])) end
return reply
