-- Choosing the jobs of a topic with limits per key that are promoted now.

-- part: writing_down
-- writing_down(limits, held, permits, permitted, paces): two functions. note(entry, member, key, paced_to, place): this job was
-- promoted; each of the last three may be false. keep(): stores its permit, when its key is next, and that it is no longer held.
local function writing_down(limits, held, permits, permitted, paces)
  local new_permits, of_entries, new_paces, gone, at = {}, {}, {}, {}, 0
  local has_permits = limits[1] > 0
  local function note(entry, member, key, paced_to, place)
    if key and has_permits then
      local cut = string.find(member, '\31', 1, true)
      local group = cut and string.match(member, '^[^\31]*', cut + 1) or ''
      new_permits[at + 1], new_permits[at + 2] = '0', key .. '\31' .. entry
      of_entries[at + 1], of_entries[at + 2] = entry, group .. '\31' .. key
      at = at + 2
    end
    if paced_to then new_paces[#new_paces + 1], new_paces[#new_paces + 2] = string.format('%.0f', paced_to), key end
    if place then gone[#gone + 1] = place end
  end
  local function keep()
    if at > 0 then
      redis.call('ZADD', permits, unpack(new_permits))
      redis.call('HSET', permitted, unpack(of_entries))
    end
    if #new_paces > 0 then redis.call('ZADD', paces, unpack(new_paces)) end
    if #gone > 0 then redis.call('ZREM', held, unpack(gone)) end
  end
  return note, keep
end

-- part: free_choice
-- free_choice(limits, members, records, limit_keys(ready)): `note` and `keep` of a choice that has these due jobs, all of them. nil if
-- some are held back, or a key allows not all of its own: then it takes a choice to say who goes. It is the short way for
-- topics in which no key is at its limit.
local function free_choice(limits, members, records, held, permits, permitted, paces)
  if redis.call('EXISTS', held) == 1 then return nil end
  local may_go, take = room_of(limits, permits, paces)
  local keys, paced_to = {}, {}
  for n, record in ipairs(records) do
    local key = key_of(record) or false
    if key and not may_go(key) then return nil end
    keys[n], paced_to[n] = key, key and take(key)
  end
  local note, keep = writing_down(limits, held, permits, permitted, paces)
  return function(n, entry) note(entry, members[n], keys[n], paced_to[n]) end, keep
end

-- part: choice
-- choice(delayed, jobs, retries, limits, most, limit_keys(ready)): chooses up to `most` jobs that their keys allow. Returns a table:
--   members, scores, records: those chosen so far, for promote_all, which gets `note`;
--   offer(member, score, record): a due job, which is chosen or held back; false if `most` are chosen; serve(key): what is
--   held back of a key; serve_offered(): the same of all keys that were offered; run_next(member, score, key): a job that goes first;
--   later: keys to serve again, as they are hinted, each with the ms when; is_cut: whether some were left because of `most`;
--   lateness: of those promoted that had been held back (see lateness); put_back: how many due ones were held back;
--   keep(): writes down what was held back and promoted. Call it after promote_all.
local MOST_SERVED = 500
local function choice(delayed, jobs, retries, limits, most, held, permits, permitted, paces)
  local lateness, count_late = late_counter()
  local chosen = {members = {}, scores = {}, records = {}, later = {}, is_cut = false, lateness = lateness, put_back = 0}
  local members, scores, records, later = chosen.members, chosen.scores, chosen.records, chosen.later
  local keys, places, paced_to, taken = {}, {}, {}, {}
  local may_go, take = room_of(limits, permits, paces)
  local hold, put_back = putting_back(delayed, retries, held)
  local last, any_held, served, offered, waits = by(now_ms()), redis.call('EXISTS', held) == 1, {}, {}, {}
  local note, keep = writing_down(limits, held, permits, permitted, paces)
  local function choose(member, score, record, key, place)
    local n = #members + 1
    members[n], scores[n], records[n], taken[member] = member, score, record or false, true
    keys[n], places[n], paced_to[n] = key or false, place or false, key and take(key) or false
  end
  local function serve_again(key, at) later[#later + 1], later[#later + 2] = '\31' .. key, at end
  function chosen.serve(key)
    if served[key] or not any_held then return end
    served[key] = true
    local skipped, again_at, first_early = 0, 0, nil
    for _ = 1, MOST_SERVED do
      local place = next_held(held, key, skipped)
      waits[key] = place ~= nil
      if not place then return first_early and serve_again(key, first_early) end
      local order, rank, member = string.match(place, '^[^\31]*\31(.)([^\31]*)\31(.*)$')
      local score = tonumber(redis.call('ZSCORE', delayed, member) or 0)
      local record = is_held(score) and not taken[member] and redis.call('HGET', jobs, member)
      local is_here = is_held(score) and not was_moved(held, key, member, unheld(score), rank)
      if taken[member] or not is_here or (record and key_of(record) ~= key) then
        redis.call('ZREM', held, place) -- it was cancelled or moved
      elseif order == RUN_NEXT and unheld(score) > last then -- the clock was set back: those behind it may be due
        skipped, first_early = skipped + 1, first_early or math.ceil(unheld(score))
      else
        local can, can_at = may_go(key)
        if unheld(score) > last then can, can_at = false, math.ceil(unheld(score)) end -- the clock was set back
        chosen.is_cut = chosen.is_cut or (can and #members >= most)
        again_at = can and 0 or can_at
        if not can or #members >= most then break end
        choose(member, score, record, record and key, place)
        skipped = skipped + 1
      end
    end
    if again_at then serve_again(key, math.min(again_at, first_early or again_at)) end
  end
  function chosen.offer(member, score, record)
    local key = key_of(record)
    if #members >= most then return false end
    if key and waits[key] == nil then
      waits[key], offered[#offered + 1] = any_held and next_held(held, key) ~= nil, key
    end
    local can, can_at = not key or not waits[key], nil
    if key and can then
      can, can_at = may_go(key)
    end
    if can then
      choose(member, score, record, key)
    else
      if can_at and served[key] then serve_again(key, can_at) end
      waits[key], chosen.put_back = true, chosen.put_back + 1
      hold(member, score, key, IN_ORDER)
    end
    return true
  end
  function chosen.serve_offered()
    put_back()
    any_held = true
    for _, key in ipairs(offered) do
      if waits[key] then chosen.serve(key) end
    end
  end
  function chosen.run_next(member, score, key)
    if may_go(key) then choose(member, score, nil, key) else hold(member, score, key, RUN_NEXT) end
  end
  function chosen.note(n, entry)
    note(entry, members[n], keys[n], paced_to[n], places[n])
    if places[n] then count_late(unheld(scores[n])) end
  end
  function chosen.keep()
    put_back()
    keep()
  end
  return chosen
end

-- part: look_over
-- look_over(chosen, delayed, ready, limits, look, limit_keys(ready)): serves the keys in `look.keys`. With `look.from`, it also
-- serves the next 100 keys after that one with jobs that are held back, and removes those of the next 100 permits after
-- `look.permit` that are over; it sets both to where the next call goes on: "" at the end.
-- A permit is over if no group that it concerns has the entry unread or pending: then a worker of an earlier release has
-- settled it, or another program has removed the entry or the group.
local AT_ONCE = 100
local function is_over(ready, groups, entry, only)
  local is_there = redis.call('EXISTS', ready) == 1 and #redis.call('XRANGE', ready, entry, entry) == 1
  for _, group in ipairs(groups) do
    if not only or only == '' or only == group.name then
      if is_there and after(entry, group.read_to) then return false end
      if #redis.call('XPENDING', ready, group.name, entry, entry, 1) > 0 then return false end
    end
  end
  return #groups > 0 or not is_there
end
local function remove_over(ready, permits, permitted, from)
  local some = redis.call('ZRANGEBYLEX', permits, from == '' and '-' or '(' .. from, '+', 'LIMIT', 0, AT_ONCE)
  local groups = #some > 0 and redis.call('EXISTS', ready) == 1 and groups_of(ready) or {}
  for _, member in ipairs(some) do
    local entry = string.match(member, '[^\31]*$')
    local only = string.match(redis.call('HGET', permitted, entry) or '', '^[^\31]*')
    if not is_entry(entry) or is_over(ready, groups, entry, only) then
      redis.call('HDEL', permitted, entry)
      redis.call('ZREM', permits, member)
    end
  end
  return #some == AT_ONCE and some[AT_ONCE] or ''
end
local function look_over(chosen, delayed, ready, limits, look, held, permits, permitted, paces)
  if look.from then
    if limits[1] == 0 then redis.call('UNLINK', permits, permitted) end
    if held_in(delayed) == 0 then redis.call('UNLINK', held) end
    redis.call('ZREMRANGEBYSCORE', paces, '-inf', now_us())
    look.permit = remove_over(ready, permits, permitted, look.permit)
  end
  for _, key in ipairs(look.keys) do chosen.serve(key) end
  for _ = 1, look.from and AT_ONCE or 0 do
    local place = redis.call('ZRANGEBYLEX', held, look.from == '' and '-' or '(' .. look.from, '+', 'LIMIT', 0, 1)[1]
    local key = place and string.match(place, '^[^\31]*')
    look.from = key and key .. ' ' or ''
    if not key then break end
    chosen.serve(key)
  end
end
-- forget_limits(delayed, retries, most, limit_keys(ready)): the topic has no limits per key any more; see unhold. The places of
-- those that are held back stay until none is: there may be limits again before that.
-- limited_in(limit_keys(ready)): how many jobs are held back or have permits.
local function forget_limits(delayed, retries, most, held, permits, permitted, paces)
  redis.call('UNLINK', permits, permitted, paces)
  local are_left = unhold(delayed, retries, most)
  if not are_left then redis.call('UNLINK', held) end
  return are_left
end
local function limited_in(held, permits) return redis.call('ZCARD', held) + redis.call('ZCARD', permits) end
