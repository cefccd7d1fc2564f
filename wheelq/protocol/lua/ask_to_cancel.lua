-- Ask the workers that run a job to cancel it.
-- uses: fields
-- KEYS: 1 jobs, 2 ready
-- ARGV: 1 id, 2 prefix of the channels of workers
-- Returns: how many of the job's deliveries workers were asked to cancel; 0: no worker has one now.
-- Each worker has a channel; the message names the stream and the entry. In each group, a retry has its own entry.
local jobs, ready = KEYS[1], KEYS[2]
local id, channels = ARGV[1], ARGV[2]
local asked, first = 0, redis.call('HGET', jobs, id)
if not first or string.byte(first) < 32 or redis.call('EXISTS', ready) == 0 then return 0 end
for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
  local fields = fields_of(info)
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
