-- Finished jobs: packing, keeping, finding and forgetting their records, and finishing jobs.

-- part: pack
-- pack(a, b, …): the fields as one string, each as "3:abc", so that they may hold any bytes.
local function pack(...)
  local parts = {}
  for n, part in ipairs({...}) do parts[n] = #part .. ':' .. part end
  return table.concat(parts)
end

-- part: field
-- field(packed, from) → the field that begins there, and where the next one begins; nil at the end, or if there is no whole
-- field. Every field is behind the one before it, so a loop over the fields ends whatever another program wrote.
local function field(packed, from)
  local length = string.match(packed, '^(%d+):', from)
  if not length then return nil end
  local colon = from + #length
  local to = colon + tonumber(length)
  if to > #packed then return nil end
  return string.sub(packed, colon + 1, to), to + 1
end

-- part: kept_record
-- kept_record(packed): the record in what is kept of a finished job, and its due time as text; "" if there is none.
local function kept_record(packed)
  local _, from = field(packed, 1)
  if not from then return '', nil end
  local due, next_one = field(packed, from)
  return next_one and field(packed, next_one) or '', due
end

-- part: without
-- without(packed, group): the record of a finished job (see keep_done) without this group, and how many groups are left;
-- nil if it is no such record. What is behind its last whole group is dropped: another program must have written it.
local OF_THE_JOB, OF_A_GROUP = 3, 6
local function behind(packed, from, fields)
  for _ = 1, fields do
    local _, next_one = field(packed, from)
    if not next_one then return nil end
    from = next_one
  end
  return from
end
local function without(packed, group)
  local from, groups = behind(packed, 1, OF_THE_JOB), 0
  if not from then return nil end
  local parts, to = {string.sub(packed, 1, from - 1)}, behind(packed, from, OF_A_GROUP)
  while to do
    if field(packed, from) ~= group then
      parts[#parts + 1] = string.sub(packed, from, to - 1)
      groups = groups + 1
    end
    from, to = to, behind(packed, to, OF_A_GROUP)
  end
  return table.concat(parts), groups
end

-- part: keep_done
-- keep_done(ready, jobs, done, ended, group, consumer, now, kept): keeps a record of the jobs that this group finished.
-- kept[n] = {entry, id, started_ms, result, record as its producer made it, or "" if the entry has that, its earlier
-- attempts in this group, or "", its attempt (0, or left out: that of the entry)}. One packed record per job: its first
-- entry, due, record, and then for each group that finished it: group, started, ended, attempt, consumer, result. Call it
-- before the jobs are forgotten. A record of an earlier life is replaced, and one of a later life is not: lives are in the
-- order of their first entries. A job that was run again for one group alone, after its end, has "0-0" in place of its
-- first entry, and is in the order of the times at which the jobs were scheduled. Only the last run of each group is kept.
-- Earlier attempts are kept under `id SEPARATOR group`, in a record of the same form, so that both are forgotten in
-- the same way: it has the attempts in place of the job's record, and the group's `ended` says to which run they belong.
local function scheduled_after(record, other) -- byte by byte: how texts compare depends on the server's locale
  for n = 2, 7 do
    local one, two = string.byte(record, n) or 0, string.byte(other, n) or 0
    if one ~= two then return one > two end
  end
  return false
end
local function keep_done(ready, jobs, done, ended, group, consumer, now, kept)
  local at = string.format('%.0f', now)
  for _, one in ipairs(kept) do
    local entry, id, started, result, record, attempts, attempt = unpack(one)
    local found = redis.call('XRANGE', ready, entry, entry)[1]
    if found and #found[2] >= 8 then
      if (attempt or '0') == '0' then attempt = found[2][6] end
      local first = #found[2] > 8 and (redis.call('HGET', jobs, id) or '') or entry
      if record == '' then record = found[2][8] end
      local pointed = first ~= entry and is_entry(first) and redis.call('XRANGE', ready, first, first)[1]
      if not is_entry(first) or (pointed and life_of(pointed[2][8] or '') ~= life_of(record)) then
        first = '0-0' -- a job that was no longer alive was run again for this group alone
      end
      local value = redis.call('HGET', done, id)
      local its_record = value and kept_record(value) or ''
      local is_this_life = value and life_of(its_record) == life_of(record)
      local its_first = value and field(value, 1) or ''
      local is_later = first == '0-0' and scheduled_after(record, its_record)
      if not value or is_this_life or is_later or after(first, is_entry(its_first) and its_first or '0-0') then
        local others = is_this_life and without(value, group)
        value = (others or pack(first, found[2][4], record)) .. pack(group, started, at, attempt, consumer, result)
        redis.call('HSET', done, id, value)
        redis.call('ZADD', ended, at, id)
        if attempts ~= '' then
          local of_group = id .. '\31' .. group
          redis.call('HSET', done, of_group, pack(first, found[2][4], attempts, group, started, at, attempt, consumer, ''))
          redis.call('ZADD', ended, at, of_group)
        end
      end
    end
  end
end

-- part: kept
-- kept_due(done, id, record): due_ms of the finished job kept under this id, if this very call made it.
local function kept_due(done, id, record)
  local kept = redis.call('HGET', done, id)
  if not kept then return nil end
  local its_record, due = kept_record(kept)
  return is_same(its_record, record) and tonumber(due) or nil
end

-- part: forget
-- forget_done(done, ended, before, limit): forgets up to `limit` finished jobs that ended before that ms. Returns how many.
local function forget_done(done, ended, before, limit)
  local old = redis.call('ZRANGEBYSCORE', ended, '-inf', before, 'LIMIT', 0, limit)
  if #old == 0 then return 0 end
  redis.call('HDEL', done, unpack(old))
  redis.call('ZREM', ended, unpack(old))
  return #old
end

-- part: unfinished
-- groups_of(ready, group): name and last entry read of every other group, the last entry that this group has read, and what
-- the server says of all groups.
-- is_unfinished(ready, group, read_to, entry, has_gone): whether a group that has read so far has the entry unread or pending;
-- nobody reads one that is gone.
-- is_gone(ready, entry): whether an entry was trimmed, as the first one of a job may be while it waits for a retry.
local function groups_of(ready, group)
  local others, own_read_to, infos = {}, nil, redis.call('XINFO', 'GROUPS', ready)
  for _, info in ipairs(infos) do
    local fields = {}
    for n = 1, #info, 2 do fields[info[n]] = info[n + 1] end
    if fields['name'] == group then
      own_read_to = fields['last-delivered-id']
    else
      others[#others + 1] = {name = fields['name'], read_to = fields['last-delivered-id']}
    end
  end
  return others, own_read_to, infos
end
local function is_gone(ready, entry) return #redis.call('XRANGE', ready, entry, entry) == 0 end
local function is_unfinished(ready, group, read_to, entry, has_gone)
  return (not has_gone and after(entry, read_to)) or #redis.call('XPENDING', ready, group, entry, entry, 1) > 0
end

-- part: finish
-- finish(ready, jobs, group, entries, members): forgets jobs that this group was the last to finish. Returns their members,
-- what the server says of all groups, and the other groups (see groups_of).
-- entries[n] was just acked for members[n], which is `id` or `id SEPARATOR group`. If there is one group, the job is done.
-- If there are several, it is done when no other group has its entry unread or pending, or waits for a retry of it.
-- The pointer in `jobs` is compared with the entry, because a late ack must not forget a newer job with the same id. Nor
-- must a retry, which may be from a rerun of an earlier life of the id: it leaves a job alone that waits, or that this
-- group has not finished.
local SPLIT = '\31'
local function needed(ready, jobs, others, entry, id, has_gone)
  for _, other in ipairs(others) do
    if redis.call('HEXISTS', jobs, id .. SPLIT .. other.name) == 1 then return true end
    if is_unfinished(ready, other.name, other.read_to, entry, has_gone) then return true end
  end
  return false
end
local function finish(ready, jobs, group, entries, members)
  if #entries == 0 then return {} end
  local others, own_read_to, infos = groups_of(ready, group)
  local pointers = redis.call('HMGET', jobs, unpack(members))
  local done, is_alone = {}, #others == 0
  for n = 1, #members do
    local member = members[n]
    local cut = string.find(member, SPLIT, 1, true)
    -- A retry of another group is only skipped: that group has to finish it.
    if pointers[n] == entries[n] and (not cut or string.sub(member, cut + 1) == group) then
      local id, first, has_gone = member, entries[n], false
      if cut then
        id = string.sub(member, 1, cut - 1)
        first = redis.call('HGET', jobs, id)
        done[#done + 1] = member
        has_gone = first and is_entry(first) and is_gone(ready, first)
        if first and (not is_entry(first) or is_unfinished(ready, group, own_read_to, first, has_gone)) then first = nil end
      end
      if first and (is_alone or not needed(ready, jobs, others, first, id, has_gone)) then done[#done + 1] = id end
    end
  end
  if #done > 0 then redis.call('HDEL', jobs, unpack(done)) end
  return done, infos, others
end
