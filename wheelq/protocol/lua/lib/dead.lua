-- Dead jobs: finding, burying, removing.

-- part: matches
-- matches(fields, group, reason, id): whether a dead job has this group, reason and id; "" matches any.
local function matches(fields, group, reason, id)
  return (group == '' or fields['group'] == group) and (reason == '' or fields['reason'] == reason)
    and (id == '' or fields['id'] == id)
end

-- part: remove_dead
-- remove_dead(dead, buried, entry, ends): removes an entry, as XRANGE gives it, from the dead, and the pointer to it. Returns
-- 1, or 0 if it was not there. If it was a member of a bundle, that is added to `ends`, as `count_ends` takes it. A job that
-- died in a rerun has no first entry, and counts nothing.
local function remove_dead(dead, buried, entry, ends)
  local fields = fields_of(entry[2])
  local member = (fields['id'] or '') .. '\31' .. (fields['group'] or '')
  if redis.call('HGET', buried, member) == entry[1] then redis.call('HDEL', buried, member) end
  local record = fields['record'] or ''
  if ends and (fields['entry'] or '') ~= '' and bundle_of(record) then ends[#ends + 1] = {life_of(record), 'unburied'} end
  return redis.call('XDEL', dead, entry[1])
end

-- part: mark_dead
-- mark_dead(buried, progress, news, id, group, dead_id): a job was buried as entry `dead_id` of the dead. Makes it
-- findable by id and group, forgets its progress, and notifies callers that wait for it.
local function mark_dead(buried, progress, news, id, group, dead_id)
  redis.call('HSET', buried, id .. '\31' .. group, dead_id)
  redis.call('HDEL', progress, id .. '\31' .. group)
  tell_ended(news, {id})
end

-- part: trim_dead
-- trim_dead(dead, buried, retention_ms, most, now, ends): removes dead jobs that are too old or too many, up to 20 in a call,
-- oldest first. 0 is no limit. That is more than a call adds, and no call takes long.
local AT_ONCE = 20
local function trim_dead(dead, buried, retention_ms, most, now, ends)
  local surplus = most > 0 and redis.call('XLEN', dead) - most or 0
  local found = {}
  if surplus > 0 then
    found = redis.call('XRANGE', dead, '-', '+', 'COUNT', math.min(surplus, AT_ONCE))
  elseif retention_ms > 0 then
    found = redis.call('XRANGE', dead, '-', string.format('%.0f', math.max(now - retention_ms, 0)), 'COUNT', AT_ONCE)
  end
  for _, entry in ipairs(found) do remove_dead(dead, buried, entry, ends) end
  return #found
end
