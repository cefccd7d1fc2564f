-- Look one job up.
-- KEYS: 1 delayed, 2 jobs, 3 ready
-- ARGV: 1 id
-- Returns: {} not found; {due_ms, record} waiting;
--          {due_ms, record, entry id, deliveries of the entry in all groups, groups where it waits for a retry} promoted.
-- Atomic, so that a job that is promoted meanwhile is not missed.
local delayed, jobs, ready = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]
local stored = redis.call('HGET', jobs, id)
if not stored then return {} end
local due = redis.call('ZSCORE', delayed, id)
if due then return {due, stored} end
local entry = redis.call('XRANGE', ready, stored, stored)[1]
local deliveries, retries = 0, 0
if redis.call('EXISTS', ready) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
    local group = info[2]
    deliveries = deliveries + #redis.call('XPENDING', ready, group, stored, stored, 1)
    retries = retries + redis.call('HEXISTS', jobs, id .. '\31' .. group)
  end
end
if not entry then return {'0', '', stored, deliveries, retries} end
return {entry[2][4], entry[2][8], stored, deliveries, retries}
