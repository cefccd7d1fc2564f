-- Ask the workers that run a job to cancel it.
-- uses: fields, stored, head_parts, again, debounce
-- KEYS: 1 jobs, 2 ready
-- ARGV: 1 id, 2 prefix of the channels of workers, 3 "second" to ask only about the second job (may be left out)
-- Returns: how many of the job's deliveries workers were asked to cancel; 0: no worker has one now.
-- The job under the second id of a debounced key is asked to be cancelled, too. Each worker has a channel; the message
-- names the stream and the entry. In each group, a retry has its own entry. LEASES: the consumers of leases over HTTP
-- (protocol/calls/leases.py), which nobody can be asked about.
local jobs, ready = KEYS[1], KEYS[2]
local id, channels = ARGV[1], ARGV[2]
local asked, LEASES = 0, {http = true, released = true}
local function ask(id, first)
  if not first or string.byte(first) < 32 or redis.call('EXISTS', ready) == 0 then return end
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
    local fields = fields_of(info)
    local group = fields['name']
    local entry = redis.call('HGET', jobs, id .. '\31' .. group) or first
    if string.byte(entry) >= 32 then
      local pending = redis.call('XPENDING', ready, group, entry, entry, 1)[1]
      if pending and not LEASES[pending[2]] then
        redis.call('PUBLISH', channels .. pending[2], ready .. ' ' .. entry)
        asked = asked + 1
      end
    end
  end
end
if ARGV[3] ~= 'second' then ask(id, redis.call('HGET', jobs, id)) end
ask(second_of(jobs, ready, id))
return asked
