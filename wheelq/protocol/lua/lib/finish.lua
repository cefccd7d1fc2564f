-- finish(ready, jobs, group, entries, members): forgets jobs that this group was the last to finish.
-- entries[n] was acked just now for members[n]; `id` or `id SEPARATOR group`. With one group the job is done. With
-- several it is done when no other group has its entry unread or pending, or waits for a retry of it.
-- The pointer in `jobs` is compared with the entry: a late ack must not forget a newer job with the same id. Nor must a
-- retry, which may be of an earlier life of the id that was fired again: it leaves a job alone that waits, or that this
-- group itself has yet to finish.
local SPLIT = '\31'
local function groups_of(ready, group)
  local others, own_read_to = {}, nil
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
    local fields = {}
    for n = 1, #info, 2 do fields[info[n]] = info[n + 1] end
    if fields['name'] == group then
      own_read_to = fields['last-delivered-id']
    else
      others[#others + 1] = {name = fields['name'], read_to = fields['last-delivered-id']}
    end
  end
  return others, own_read_to
end
local function is_unfinished(ready, group, read_to, entry)
  return after(entry, read_to) or #redis.call('XPENDING', ready, group, entry, entry, 1) > 0
end
local function needed(ready, jobs, others, entry, id)
  for _, other in ipairs(others) do
    if redis.call('HEXISTS', jobs, id .. SPLIT .. other.name) == 1 then return true end
    if is_unfinished(ready, other.name, other.read_to, entry) then return true end
  end
  return false
end
local function finish(ready, jobs, group, entries, members)
  if #entries == 0 then return end
  local others, own_read_to = groups_of(ready, group)
  local pointers = redis.call('HMGET', jobs, unpack(members))
  local done = {}
  for n, member in ipairs(members) do
    local cut = string.find(member, SPLIT, 1, true)
    -- The retry of another group is only passed over: it is that group's to finish.
    if pointers[n] == entries[n] and (not cut or string.sub(member, cut + 1) == group) then
      local id, first = member, entries[n]
      if cut then
        id = string.sub(member, 1, cut - 1)
        first = redis.call('HGET', jobs, id)
        done[#done + 1] = member
        if first and (string.byte(first) < 32 or is_unfinished(ready, group, own_read_to, first)) then first = nil end
      end
      if first and not needed(ready, jobs, others, first, id) then done[#done + 1] = id end
    end
  end
  if #done > 0 then redis.call('HDEL', jobs, unpack(done)) end
end
