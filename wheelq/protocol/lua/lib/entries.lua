-- Entries of the ready stream: adding them, comparing their ids, removing what every group has finished.

-- part: emit
-- emit(ready, member, due, record): adds one entry to the ready stream. Returns its id, or nil when it was refused.
-- A failure is returned and not raised, because a script that fails half-way is not rolled back: the caller leaves
-- this job waiting and still records what was added before it.
-- A member is an id, or `id SEPARATOR group`, perhaps with `SEPARATOR entry` behind it (see retry).
-- Entry fields, in this order: id, due, attempt, record, and group (only for a retry, which concerns one group).
-- arrived: the streams to which this call has added entries; `tell_came` tells workers.
local SEPARATOR, arrived = '\31', {}
local function emit(ready, member, due, record)
  local attempt = string.byte(record, 8) or 0 -- 0 if another program wrote less than a head
  local cut = string.find(member, SEPARATOR, 1, true)
  local entry
  if cut then
    entry = redis.pcall('XADD', ready, '*', 'id', string.sub(member, 1, cut - 1), 'due', due, 'attempt', attempt,
      'record', record, 'group', string.match(member, '^[^\31]*', cut + 1))
  else
    entry = redis.pcall('XADD', ready, '*', 'id', member, 'due', due, 'attempt', attempt, 'record', record)
  end
  if type(entry) == 'table' then return nil end
  if arrived[#arrived] ~= ready then arrived[#arrived + 1] = ready end
  return entry
end

-- part: stored
-- is_entry(stored): whether the value in `jobs` is the id of an entry, and not a record, or something that another program
-- wrote.
local function is_entry(stored)
  return string.find(stored, '^%d+%-%d+$') ~= nil
end

-- part: parts
-- parts(entry) → ms, seq; after(a, b): whether entry id a comes after b. Entry ids are two numbers, not text.
local function parts(entry)
  local dash = string.find(entry, '-', 1, true)
  return tonumber(string.sub(entry, 1, dash - 1)), tonumber(string.sub(entry, dash + 1))
end
local function after(a, b)
  local ams, aseq = parts(a)
  local bms, bseq = parts(b)
  return ams > bms or (ams == bms and aseq > bseq)
end

-- part: trim
-- trim(ready, retention_ms, now, counts, infos): removes entries that every group has acked and that are older than the
-- retention, about 20,000 at most, which take a millisecond. Returns how many, and whether there may be more.
-- Never removes an entry that some group has not read or not acked. The cut is the lowest over all groups: the group's
-- lowest pending entry, or if none is pending, the one after the last it was given.
-- Removes nothing within a minute of the first group (see make_group), so that groups that are made a little later get
-- these jobs, too. `counts` may be nil: then this is not known. `infos` may be what the server has just said of the groups.
local function trim(ready, retention_ms, now, counts, infos)
  local MOST = 20000
  local YOUNG_MS = 60000
  local born = counts and redis.pcall('HGET', counts, 'born')
  born = type(born) == 'string' and tonumber(string.match(born, '^%d+'))
  if born and born <= now and now < born + YOUNG_MS then return 0, false end
  local least
  for _, info in ipairs(infos or redis.call('XINFO', 'GROUPS', ready)) do
    local fields = {}
    for n = 1, #info, 2 do fields[info[n]] = info[n + 1] end
    local cut
    if fields['pending'] > 0 then
      cut = redis.call('XPENDING', ready, fields['name'])[2]
    else
      local ms, seq = parts(fields['last-delivered-id'])
      if ms >= 2 ^ 53 then return 0 end -- Lua cannot count such ids exactly
      cut = string.format('%.0f-%.0f', seq < 2 ^ 53 and ms or ms + 1, seq < 2 ^ 53 and seq + 1 or 0)
    end
    if not least or after(least, cut) then least = cut end
  end
  if not least then return 0, false end
  if retention_ms > 0 and parts(least) - now <= retention_ms then -- else the clock was ahead, and ids tell no age
    local kept = string.format('%.0f-0', math.max(now - retention_ms, 0))
    if after(least, kept) then least = kept end
  end
  if redis.call('XLEN', ready) <= MOST then return redis.call('XTRIM', ready, 'MINID', least), false end
  -- The server removes whole nodes of about a hundred entries, as many as the limit allows, and none if the first node
  -- holds the cut: then the entries of that node are removed exactly.
  local removed = 0
  repeat
    local some = redis.call('XTRIM', ready, 'MINID', '~', least, 'LIMIT', MOST)
    removed = removed + some
    if removed >= MOST / 2 then return removed, true end
  until some == 0
  return removed + redis.call('XTRIM', ready, 'MINID', least), false
end
