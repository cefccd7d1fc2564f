-- Jobs to schedule: reading a call's arguments, comparing a new job with a live one, the topic's terms.

-- part: wanted
-- wanted(args, first): the ids, due times and fractions (see clock) of a call's jobs, and the earliest due time. From
-- argument `first` on there are three for each job: id, due, record. Raises an error if one is invalid, before anything
-- is written.
local function wanted(args, first)
  local ids, dues, fractions, soonest = {}, {}, {}, math.huge
  local at, last, due, fraction, byte = 0, nil, nil, nil, string.byte
  for n = first, #args, 3 do
    local text, record = args[n + 1] or '', args[n + 2] or ''
    if text ~= last then -- jobs scheduled together often have the same delay
      due, fraction = due_ms(text)
      last = text
      if due < soonest then soonest = due end
    end
    at = at + 1
    ids[at], dues[at], fractions[at] = args[n], due, fraction
    -- As `is_record`: a call would cost more.
    if #record < 18 or byte(record) ~= 2 then error('no record of job ' .. ids[at]) end
  end
  return ids, dues, fractions, soonest
end

-- part: again
-- again_of(jobs, ready, id): the record of a live job whose first entry is gone, because it waits for a retry or was
-- replayed, and the member under which it waits; nil if nothing of it is there.
local function again_of(jobs, ready, id)
  for _, info in ipairs(redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
    local member = id .. '\31' .. info[2]
    local stored = redis.call('HGET', jobs, member)
    local entry = stored and is_entry(stored) and redis.call('XRANGE', ready, stored, stored)[1]
    local record = entry and entry[2][8] or not (stored and is_entry(stored)) and stored
    if record then return record, member end
  end
end

-- part: standing
-- standing(delayed, jobs, ready, id, stored, record, due, replace, now): the status of a new job whose id a live job has.
-- `stored` is the live job's value in the hash; `due` its due time, if known. Returns the status, the due time
-- of the live job, and its life if it is kept; or the status alone when the new one is to be written.
local function standing(delayed, jobs, ready, id, stored, record, due, replace, now)
  local KEPT, CREATED, REPLACED, KEPT_PROMOTED = 0, 1, 2, 3
  if is_entry(stored) then -- promoted: its entry has its record and due time
    local entry = redis.call('XRANGE', ready, stored, stored)[1]
    if not entry then
      local again, member = again_of(jobs, ready, id)
      local next_due = again and redis.call('ZSCORE', delayed, member)
      local at, life = next_due and due_of(next_due) or now, again and life_of(again) or ''
      if life == life_of(record) and string.find(life, '[^%z]') then return CREATED, at end -- not two without a life
      return KEPT_PROMOTED, at, life
    end
    local its, at = entry[2][8] or '', tonumber(entry[2][4]) or now
    if is_same(its, record) then return CREATED, at end
    return KEPT_PROMOTED, at, life_of(its)
  end
  due = due or due_of(redis.call('ZSCORE', delayed, id))
  if not due then return CREATED end
  if is_same(stored, record) then return CREATED, due end
  if replace then return REPLACED end
  return KEPT, due, life_of(stored)
end

-- part: life_behind
-- life_behind(ready, stored): the life of the job of which `jobs` has this value, its record or the id of its entry; nil if
-- the entry is gone.
local function life_behind(ready, stored)
  if not is_entry(stored) then return life_of(stored) end
  local found = redis.call('XRANGE', ready, stored, stored)[1]
  return found and life_of(found[2][8] or '')
end

-- part: latest
-- latest(records, n, id): the last value for this id among {id, value, …}, of `n` items.
local function latest(records, n, id)
  while records[n - 1] ~= id do n = n - 2 end
  return records[n]
end

-- part: debounce
-- A job is debounced if its record has the part `d` (max_wait, in ms). While the job of its key is promoted, calls with the
-- key make one more job under a second id, and replace that.
-- wait_of(record): its max_wait; nil if it has none. second_of(jobs, ready, id): the second id of this key, and what `jobs`
-- holds of it, if such a job is alive.
local SECOND = '~second'
local function wait_of(record)
  local wait = part_of(record, 'd')
  return wait and number_of(wait) or nil
end
local function second_of(jobs, ready, id)
  local stored = redis.call('HGET', jobs, id .. SECOND)
  local is_promoted = stored and is_entry(stored)
  local entry = is_promoted and redis.call('XRANGE', ready, stored, stored)[1]
  local record = is_promoted and (entry and entry[2][8] or again_of(jobs, ready, id .. SECOND)) or stored
  if record and wait_of(record) then return id .. SECOND, stored end
end

-- part: debounced
-- debounced(jobs, delayed, ready, id, sent, due, now, own, other): which id a debounced job takes: that of the job that
-- waits; else the second, if the job of its key is promoted. `own` is what is stored under its key, and `other` what this
-- call has written under the second id. Returns the id, what is stored under it, the due time, at most max_wait after the
-- call that made the job, its record, and whether it may replace a job that waits. A record that was sent later than its
-- call (by an outbox) says when the call was made.
local function debounced(jobs, delayed, ready, id, sent, due, now, own, other)
  other = other or redis.call('HGET', jobs, id .. SECOND)
  local function waits(stored) return stored and not is_entry(stored) end
  local function is_this_call(name, stored)
    return stored and standing(delayed, jobs, ready, name, stored, sent, nil, false, now) == 1
  end
  local second, stored, may_replace = id .. SECOND, own, true
  if not waits(own) and waits(other) and wait_of(other) then
    id, stored = second, other
  elseif not waits(own) and (own and not is_this_call(id, own) or is_this_call(second, other)) then
    id, stored, may_replace = second, other, not waits(other) -- one that waits is not of this key
  end
  local first = waits(stored) and wait_of(stored) and stored or sent
  local made = number_of(string.sub(first, 2, 7))
  if made == 0 or made > now then made = now end
  return id, stored, math.min(due, made + wait_of(sent)), stamped(sent, stamp_of(made)), may_replace
end

-- part: terms
-- terms_of(shards, sent): the terms that a producer has sent, without their version; then those in force, if they are others, or
-- the same in a later version: then the number of shards was changed and changed back, which that producer has missed.
-- by_terms(delayed, terms): how many more jobs may wait here, and whether new ones that are due go to the stream at once.
-- The terms of a topic without limits are only its number of shards, and need no count.
local function version_in(fence) return tonumber(redis.call('GET', fence) or 0) or 0 end
local function terms_of(shards, sent)
  local at, known = string.find(sent, ' @', 1, true), sent ~= '' and redis.call('GET', shards)
  local terms = at and string.sub(sent, 1, at - 1) or sent
  if not known then return terms end
  local fence, version = string.sub(shards, 1, -#'shards' - 1) .. 'fence', at and tonumber(string.sub(sent, at + 2))
  local is_older = version and version_in(fence) > version
  return terms, (is_older or known ~= terms) and known or nil
end
local function by_terms(delayed, terms)
  local most, state = string.match(terms, ' (%d+) (%a+)')
  if not most then return math.huge, true end
  return most == '0' and math.huge or tonumber(most) - redis.call('ZCARD', delayed), state == 'free'
end
