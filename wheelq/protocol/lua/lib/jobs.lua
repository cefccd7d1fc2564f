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

-- part: standing
-- standing(delayed, ready, id, stored, record, due, replace, now): the status of a new job whose id a live job has.
-- `stored` is the live job's value in the hash; `due` its due time, if known. Returns the status, the due time
-- of the live job, and its life if it is kept; or the status alone when the new one is to be written.
local function standing(delayed, ready, id, stored, record, due, replace, now)
  local KEPT, CREATED, REPLACED, KEPT_PROMOTED = 0, 1, 2, 3
  if is_entry(stored) then -- promoted: its entry has its record and due time
    local entry = redis.call('XRANGE', ready, stored, stored)[1]
    if not entry then return KEPT_PROMOTED, now, '' end
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

-- part: terms
-- by_terms(delayed, terms): how many more jobs may wait here, and whether new ones that are due go to the stream at once.
-- The terms of a topic without limits are only its number of shards, and need no count.
local function by_terms(delayed, terms)
  local most, state = string.match(terms, ' (%d+) (%a+)')
  if not most then return math.huge, true end
  return most == '0' and math.huge or tonumber(most) - redis.call('ZCARD', delayed), state == 'free'
end
