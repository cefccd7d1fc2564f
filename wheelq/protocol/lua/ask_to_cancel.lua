-- Ask the workers that run a job to cancel it.
-- KEYS: 1 jobs, 2 ready
-- ARGV: 1 id, 2 what the channels of workers begin with
-- Returns: how many deliveries of it a worker was asked to cancel; 0: none is with a worker now.
-- A worker has a channel of its own; the message is the stream and the entry. In each group a retry has its own entry.
local jobs, ready = KEYS[1], KEYS[2]
local id, channels = ARGV[1], ARGV[2]
local asked, first = 0, redis.call('HGET', jobs, id)
if not first or string.byte(first) < 32 or redis.call('EXISTS', ready) == 0 then return 0 end
for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
  local fields = {}
  for n = 1, #info, 2 do fields[info[n]] = info[n + 1] end
  local group = fields['name']
  local entry = redis.call('HGET', jobs, id .. '\31' .. group) or first
  if string.byte(entry) >= 32 then
    local pending = redis.call('XPENDING', ready, group, entry, entry, 1)[1]
    if pending then
      redis.call('PUBLISH', channels .. pending[2], ready .. ' ' .. entry)
      asked = asked + 1
    end
  end
end
return asked
