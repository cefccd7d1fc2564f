-- How much a topic's shaping lets through. What is counted stands in the shard, so that it holds over take-overs.
-- tokens(rate, interval_us, burst): how many jobs may go now, and the time (us) they are counted from: when `rate` was
-- last at rest, but not so long ago that more than a burst has gathered. After k jobs it is k intervals later (spend).
-- unread(ready, most): entries that the group which is furthest behind was not given. Servers before 7.0 do not tell, and
-- none does after a deletion: there they are counted, to 2,000 at most. With no group yet it is all there are.
local COUNTED = 2000
local function tokens(rate, interval_us, burst)
  local now = tonumber(now_us())
  local rested = tonumber(redis.call('GET', rate) or 0)
  if rested > now then rested = 0 end -- the clock was set back: nobody may have to wait until it is there again
  local from = math.max(rested, now - burst * interval_us)
  return math.floor((now - from) / interval_us), from
end
local function spend(rate, interval_us, from, jobs)
  redis.call('SET', rate, string.format('%.0f', from + jobs * interval_us))
end
local function unread(ready, most)
  if redis.call('EXISTS', ready) == 0 then return 0 end
  local groups, found = redis.call('XINFO', 'GROUPS', ready), 0
  if #groups == 0 then return redis.call('XLEN', ready) end
  for _, info in ipairs(groups) do
    local fields = {}
    for n = 1, #info, 2 do fields[info[n]] = info[n + 1] end
    local lag = fields['lag']
    if not lag then
      local first = '(' .. fields['last-delivered-id']
      lag = #redis.call('XRANGE', ready, first, '+', 'COUNT', math.min(most, COUNTED))
      if lag == COUNTED then lag = most end
    end
    found = math.max(found, lag)
  end
  return found
end
