-- Consumer groups: how far they have read, and the states of their jobs.

-- part: group
-- Consumer groups of a stream.
-- groups_of(ready): {name, read_to, pending, lag, is_more} of each; empty if there is no stream. `lag` is how many
-- entries the group has not been given. Servers before 7.0 do not report it, nor does any server for a while after a
-- deletion: then they are counted, up to 10,000 or 8 MB of records, and is_more says that there are more.
local COUNTED, COUNTED_BYTES, AT_ONCE = 10000, 8000000, 500
local function count_unread(ready, read_to)
  local found, bytes, from = 0, 0, read_to
  while found < COUNTED and bytes < COUNTED_BYTES do
    local page = redis.call('XRANGE', ready, '(' .. from, '+', 'COUNT', AT_ONCE)
    for _, entry in ipairs(page) do bytes = bytes + #(entry[2][8] or '') end
    found = found + #page
    if #page < AT_ONCE then return found, false end
    from = page[#page][1]
  end
  return found, #redis.call('XRANGE', ready, '(' .. from, '+', 'COUNT', 1) > 0
end
local function groups_of(ready)
  local groups = {}
  for n, info in ipairs(redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
    local fields, is_more = fields_of(info), false
    local lag, read_to = fields['lag'], fields['last-delivered-id']
    if not lag then
      lag, is_more = count_unread(ready, read_to)
    end
    groups[n] = {name = fields['name'], read_to = read_to, pending = fields['pending'], lag = lag, is_more = is_more}
  end
  return groups
end

-- part: tally
-- tally(jobs, ready, groups, retried, live): how many jobs are ready, running and waiting for a retry, if a stream has
-- several groups. A job counts once, in the state that `get` shows: retrying in any group, else running in any, else ready
-- in any. `retried` is how many retries wait, and `live` how many fields of `jobs` are entry ids.
-- Looks at no more than 500 unread entries, and 500 pending ones of each group. If there are more, the total is still
-- nearly right, and its division into states is an estimate.
local MOST_LOOKED = 500
local function tally(jobs, ready, groups, retried, live)
  local states, slowest, read_to, counts = {}, groups[1], {}, {ready = 0, running = 0, retrying = 0}
  local is_all, most_pending = true, 0
  for _, group in ipairs(groups) do
    read_to[group.name] = group.read_to
    if after(slowest.read_to, group.read_to) then slowest = group end
  end
  local function meet(entry, fields, state)
    local id, only, wanted = fields[2], fields[10], {fields[2]}
    for n, group in ipairs(groups) do wanted[n + 1] = id .. '\31' .. group.name end
    local stored = redis.call('HMGET', jobs, unpack(wanted))
    for n, group in ipairs(groups) do
      if stored[n + 1] and not is_entry(stored[n + 1]) then state = 'retrying' end
      if only == group.name and stored[n + 1] == entry then live = live - 1 end -- the entry of a retry belongs to the same job
    end
    if states[id] then return end
    states[id] = state
    counts[state] = counts[state] + 1
    if stored[1] then live = live - 1 end
  end
  for _, one in ipairs(groups) do
    local group = one.name
    local pending = one.pending > 0 and redis.call('XPENDING', ready, group, '-', '+', MOST_LOOKED) or {}
    is_all, most_pending = is_all and #pending < MOST_LOOKED, math.max(most_pending, one.pending)
    for _, delivery in ipairs(pending) do
      local entry = delivery[1]
      local found = redis.call('XRANGE', ready, entry, entry)[1]
      local only = found and found[2][10]
      if found and (not only or only == group) then meet(entry, found[2], 'running') end
    end
  end
  local unread = redis.call('XRANGE', ready, '(' .. slowest.read_to, '+', 'COUNT', MOST_LOOKED)
  for _, entry in ipairs(unread) do
    local only = entry[2][10]
    if not only or (read_to[only] and after(entry[1], read_to[only])) then meet(entry[1], entry[2], 'ready') end
  end
  live = math.max(live, 0) -- jobs that were not seen: they wait for a retry, or are beyond the entries looked at
  if is_all and #unread < MOST_LOOKED then return counts.ready, counts.running, math.min(retried, counts.retrying + live) end
  local all = counts.ready + counts.running + counts.retrying + live
  local retrying = math.min(retried, counts.retrying + live)
  local running = math.max(counts.running, math.min(most_pending, all - retrying))
  return math.max(all - running - retrying, 0), running, retrying
end

-- part: census
-- census(delayed, ready, dead, jobs, retries): the reply of `counts`: see counts.lua. Up to 100 keys are counted.
local MOST_KEYS = 100
local function held_back(delayed, held)
  local jobs, keys, from = held_in(delayed), 0, '-'
  if jobs == 0 then return {0, 0, ''} end
  while keys < MOST_KEYS do
    local place = redis.call('ZRANGEBYLEX', held, from, '+', 'LIMIT', 0, 1)[1]
    if not place then break end
    keys, from = keys + 1, '(' .. string.match(place, '^[^\31]*') .. ' '
  end
  local first = redis.call('ZCOUNT', delayed, '-inf', '(' .. HELD)
  return {jobs, keys, redis.call('ZRANGE', delayed, first, first, 'WITHSCORES')[2]}
end
local function census(delayed, ready, dead, jobs, retries)
  local first, waiting = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2], redis.call('ZCARD', delayed)
  local retried = math.min(waiting_retries(retries, first and math.max(tonumber(first), 0)), waiting)
  local groups = groups_of(ready)
  local unread, running, retrying = redis.call('XLEN', ready), 0, retried
  if #groups == 1 then
    unread, running = groups[1].lag, groups[1].pending
  elseif #groups > 1 then
    unread, running, retrying = tally(jobs, ready, groups, retried, redis.call('HLEN', jobs) - waiting)
  end
  local reply = {waiting - retried, unread, running, retrying, redis.call('XLEN', dead), first_of(delayed), now_us(),
    held_back(delayed, (limit_keys(ready)))}
  for _, one in ipairs(groups) do
    local group, oldest = one.name, ''
    if one.pending > 0 then
      oldest = redis.call('XPENDING', ready, group)[2]
    elseif one.lag > 0 then
      oldest = (redis.call('XRANGE', ready, '(' .. one.read_to, '+', 'COUNT', 1)[1] or {''})[1]
    end
    reply[#reply + 1] = {group, one.lag, one.is_more and 1 or 0, one.pending, oldest}
  end
  return reply
end
