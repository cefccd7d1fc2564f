-- The leader of a shard: its lease, promotion, and how much a topic's shaping lets through.

-- part: leader
-- leads(lease, token, lease_ms): whether the caller holds the shard's lease; if so, the lease is prolonged, unless lease_ms is "".
-- Every script of a leader makes this check first, so a leader that was frozen past its lease and wakes up can change
-- nothing. The PEXPIRE is also the script's first write, which matters: a server that is out of memory refuses a
-- script's first write if it needs memory, but lets the script go on once it has written. So a full server still promotes
-- due jobs, which is what frees memory.
local function leads(lease, token, lease_ms)
  if redis.call('GET', lease) ~= token then return false end
  if lease_ms ~= '' then redis.call('PEXPIRE', lease, lease_ms) end
  return true
end

-- part: ranked
-- ranked(members, dues): both in the order of scores, which are numbers; equal scores stay in their order.
local function ranked(members, dues)
  local order, sorted, scores = {}, {}, {}
  for n = 1, #members do order[n] = n end
  table.sort(order, function(a, b)
    local one, other = dues[a], dues[b]
    if one == other then return a < b end
    return one < other
  end)
  for n, place in ipairs(order) do sorted[n], scores[n] = members[place], dues[place] end
  return sorted, scores
end

-- part: promote
-- promote_all(delayed, jobs, ready, dead, retries, members, dues, counts, note, records): delayed → ready for members known to be due.
-- `retries` may be nil where no member is a retry. `note`, which may be left out, is told of the place and the entry of each.
-- `records` are theirs, as HMGET returns them, if they were read just before.
-- `dues` are scores, as numbers. Returns how many were promoted, whether that was all (false when the stream refused
-- one), and how late they were (see lateness). XADD comes before ZREM, and a job whose XADD was refused stays waiting.
-- A retry that waited under its own member, beside another life of its id, needs only its entry: `jobs` forgets it.
-- A member without a record (another program must have written it) is buried, so that it cannot block the rest; if
-- `dead` refuses it, it stays waiting, and the rest goes on.
local LATE = 13 -- from this place of the lateness on, jobs were at least 1,024 ms late
local function promote_all(delayed, jobs, ready, dead, retries, members, dues, counts, note, records)
  local lateness, count_late = late_counter()
  if #members == 0 then return 0, true, lateness end
  records = records or redis.call('HMGET', jobs, unpack(members))
  local gone, pointers, alone, retried = {}, {}, {}, {}
  local promoted, pointed, buried, removed, late, is_all = 0, 0, 0, 0, 0, true
  -- Runs for every job: counters cost less than `#`, and a loop over numbers less than ipairs.
  for n = 1, #members do
    local member, due, record = members[n], dues[n], records[n]
    if due % 1 ~= 0 or due < 0 or due >= HELD then due = due_of(due) end
    local cut = string.find(member, '\31', 1, true)
    if record then
      local entry = emit(ready, member, due, record)
      if not entry then
        is_all = false
        break
      end
      removed = removed + 1
      gone[removed] = member
      if cut and string.find(member, '\31', cut + 1, true) then
        alone[#alone + 1] = member
      else
        pointers[pointed + 1], pointers[pointed + 2] = member, entry
        pointed = pointed + 2
      end
      promoted = promoted + 1
      count_late(due)
      if cut then retried[#retried + 1] = math.max(dues[n], 0) end
      if note then note(n, entry) end
    else
      local entry = redis.pcall('XADD', dead, '*', 'id', member, 'due', due, 'attempt', 0, 'group', '', 'reason', 'no record',
        'error', 'the record of this job is missing', 'record', '')
      if type(entry) ~= 'table' then
        removed, buried = removed + 1, buried + 1
        gone[removed] = member
        if cut then retried[#retried + 1] = math.max(dues[n], 0) end
      end
    end
  end
  if #pointers > 0 then redis.call('HSET', jobs, unpack(pointers)) end
  if #alone > 0 then redis.call('HDEL', jobs, unpack(alone)) end
  if removed > 0 then redis.call('ZREM', delayed, unpack(gone)) end
  if #retried > 0 then count_retries(retries, retried, -1) end
  for n = LATE, #lateness do late = late + lateness[n] end
  count(counts, 'promoted', promoted)
  count(counts, 'late', late)
  count(counts, 'buried\31', buried)
  return promoted, is_all, lateness
end

-- part: named
-- promote_named(token, lease_ms, args, from, to, its keys as in promote.lua): promotes those of the members args[from] to
-- args[to] of a shard that are due. Returns {1, now_us, how late they were (see
-- lateness), score of the first job that still waits or "", member, score, ...} with those that wait for a later time;
-- {0} if the caller is not the leader. If the lease is not prolonged, the first job is not looked for either, and false is
-- in its place. The sorted set alone says whether a member waits, and until when; cancelled ones are skipped.
local function promote_named(token, lease_ms, args, from, to, lease, delayed, jobs, ready, dead, retries, counts)
  if not leads(lease, token, lease_ms) then return {0} end
  local last = by(now_ms())
  local scores = redis.call('ZMSCORE', delayed, unpack(args, from, to))
  local reply, members, dues, seen, found, is_ranked = {1, now_us(), {0}, false}, {}, {}, {}, 0, false
  for n = 1, #scores do
    local member, score = args[from + n - 1], scores[n]
    if score and not seen[member] then
      local due = tonumber(score)
      if due <= last then
        seen[member] = true
        found = found + 1
        members[found], dues[found] = member, due
        is_ranked = is_ranked or due % 1 ~= 0
      else
        reply[#reply + 1] = member
        reply[#reply + 1] = score
      end
    end
  end
  if is_ranked then
    members, dues = ranked(members, dues)
  end
  local _, _, lateness = promote_all(delayed, jobs, ready, dead, retries, members, dues, counts)
  reply[3] = lateness
  if lease_ms ~= '' then reply[4] = first_of(delayed) end
  return reply
end

-- part: shape
-- How many jobs a topic's shaping lets through. The key `rate` is in the shard, so that it outlives a takeover.
-- tokens(rate, interval_us, burst): how many jobs may go now, and the time (us) they are counted from: the time in `rate`,
-- but not so long ago that more than a burst has gathered. After k jobs it is k intervals later (spend).
-- unread(ready, most): how many entries the group that is furthest behind was not given. Servers before 7.0 do not report
-- it, nor does any server after a deletion: then they are counted, up to 2,000. Without a group it is all entries.
local COUNTED = 2000
local function tokens(rate, interval_us, burst)
  local now = tonumber(now_us())
  local rested = tonumber(redis.call('GET', rate) or 0) or 0
  if not (rested <= now) then rested = 0 end -- the clock was set back: jobs must not wait until it has caught up
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

-- part: sweep_due
-- sweep_due(delayed, jobs, ready, dead, retries, rate, limit, shape, counts, limits, look): promotes due jobs, earliest first, up
-- to `limit`.
-- `shape` is {interval_us, burst, most unread}, each as text and "0" for none, or empty: then nothing is held back.
-- `limits` are the limits per key, as limits_of returns them; nil: what was held back by former ones waits like all others.
-- `look` says which keys are served (see look_over; nil: only those of due jobs).
-- Returns how late the promoted jobs were (see lateness), 1 if more may be due, and, if jobs are held back by the shape, the
-- microseconds until it is worth looking again; then the choice (nil without limits per key, or if no key was at its limit).
local HELD_US = 20000
local function sweep_due(delayed, jobs, ready, dead, retries, rate, limit, shape, counts, limits, look)
  local interval_us, burst, most = tonumber(shape[1] or 0), tonumber(shape[2] or 0), tonumber(shape[3] or 0)
  local allowed, wait_us, free, from = limit, 0, nil, nil
  if most > 0 then
    allowed = math.min(allowed, math.max(0, most - unread(ready, most)))
    if allowed < limit then wait_us = HELD_US end
  end
  if interval_us > 0 then
    free, from = tokens(rate, interval_us, burst)
    allowed = math.min(allowed, free)
  end
  local are_left = not limits and forget_limits(delayed, retries, limit, limit_keys(ready))
  local found = redis.call('ZRANGEBYSCORE', delayed, '-inf', by(now_ms()), 'WITHSCORES', 'LIMIT', 0, math.max(allowed, 1))
  local has_more, members, dues, chosen = are_left or (#found > 0 and #found >= 2 * allowed), {}, {}, nil
  for n = 1, math.min(#found, 2 * allowed), 2 do
    members[#members + 1] = found[n]
    dues[#dues + 1] = tonumber(found[n + 1])
  end
  local note, keep, records = nil, nil, nil
  if limits then
    local held, permits, permitted, paces = limit_keys(ready)
    records = #members > 0 and redis.call('HMGET', jobs, unpack(members)) or {}
    if not look or not look.from and #look.keys == 0 then
      note, keep = free_choice(limits, members, records, held, permits, permitted, paces)
    end
    if not note then
      chosen = choice(delayed, jobs, retries, limits, allowed, held, permits, permitted, paces)
      if look then look_over(chosen, delayed, ready, limits, look, held, permits, permitted, paces) end
      for n, record in ipairs(records) do
        has_more = not chosen.offer(members[n], dues[n], record) or has_more
      end
      chosen.serve_offered()
      members, dues, records, has_more = chosen.members, chosen.scores, chosen.records, has_more or chosen.is_cut
      note, keep = chosen.note, chosen.keep
    end
  end
  local promoted, is_all, lateness = promote_all(delayed, jobs, ready, dead, retries, members, dues, counts, note, records)
  if keep then keep() end
  count(counts, 'swept', promoted)
  if from and promoted > 0 then spend(rate, interval_us, from, promoted) end
  if from and has_more and allowed == free then
    wait_us = math.max(wait_us, from + (promoted + 1) * interval_us - tonumber(now_us()))
  end
  return lateness, (has_more or not is_all) and 1 or 0, has_more and is_all and allowed < limit and wait_us or nil, chosen
end
