-- Counters of a shard, and their history minute by minute.

-- part: count
-- count(counts, outcome, jobs): adds to one of the shard's counters; protocol/calls/counts.py lists their names. If
-- `counts` is nil, nothing is counted.
-- Counting never fails a call: errors are ignored, such as those of a full server or of a user without the right to
-- HINCRBY. So call it after everything else that the script writes. Returns what the counter holds then.
local function count(counts, outcome, jobs)
  if counts and jobs > 0 then return redis.pcall('HINCRBY', counts, outcome, jobs) end
end

-- part: concerns
-- concerns(member, group): whether this group has to finish a delivery; it need not if it is a retry of another group.
local function concerns(member, group)
  local cut = string.find(member, '\31', 1, true)
  return not cut or string.match(member, '^[^\31]*', cut + 1) == group
end

-- part: scheduled
-- count_scheduled(counts, made, promoted): counts the jobs of one call by the status that was answered for each (see
-- schedule.lua), and how many of them went straight to the stream. Returns whether the shard counted no job before.
local function count_scheduled(counts, made, promoted)
  local created = made[1] or 0
  local is_first = created > 0 and count(counts, 'created', created) == created
  count(counts, 'replaced', made[2] or 0)
  count(counts, 'kept', (made[0] or 0) + (made[3] or 0))
  count(counts, 'refused', made[5] or 0)
  count(counts, 'promoted', promoted)
  return is_first
end

-- part: record
-- record(counts, history, hour, now): adds a row for the last minute to the history of the shard, if anything was counted
-- since the row before. `history` is the hash of `hour`, in hours since the epoch; if the last minute lies in another
-- hour, a later call with that hour records it. Costs one HGET while the minute is the same.
-- A row is stored under its minute of the hour. It holds what was added to each counter of RECORDED, in this order, as
-- numbers of seven bits a byte, the lowest first, with 128 added to each byte but the last; trailing zeros are left out.
-- A counter that another program wrote counts as 0 unless it is a number, and as 2^53 at most.
-- The field `row` of the counts holds the minute of the last call that recorded, and the counters at that time.
local RECORDED, KEPT_MS = {created = 1, promoted = 2, done = 3, retried = 4, buried = 5, late = 6}, 259200000
local function counted(text)
  return math.min(tonumber(string.match(text, '^%d+$')) or 0, 9007199254740992)
end
local function packed(number)
  local bytes = ''
  while number >= 128 do
    bytes = bytes .. string.char(number % 128 + 128)
    number = math.floor(number / 128)
  end
  return bytes .. string.char(number)
end
local function record(counts, history, hour, now)
  if not counts or not history then return end
  local minute = math.floor(now / 60000)
  local before = redis.pcall('HGET', counts, 'row')
  if type(before) == 'table' then return end -- another program has the key
  local seen = before and string.match(before, '^%d+')
  if tonumber(seen) == minute or tonumber(hour) ~= math.floor((minute - 1) / 60) then return end
  local totals, cursor, is_any = {0, 0, 0, 0, 0, 0}, '0', false
  repeat
    local page = redis.call('HSCAN', counts, cursor, 'COUNT', 500)
    cursor = page[1]
    for n = 1, #page[2], 2 do
      local place = RECORDED[string.match(page[2][n], '^[^\31]*')]
      if place then totals[place], is_any = totals[place] + counted(page[2][n + 1]), true end
    end
  until cursor == '0'
  if not is_any then return end
  local former, row, last = {}, {}, 0
  for number in string.gmatch(before or '', ' (%d+)') do former[#former + 1] = counted(number) end
  for n, total in ipairs(totals) do
    local added = before and math.max(0, total - (former[n] or 0)) or 0
    row[n] = packed(added)
    if added > 0 then last = n end
    totals[n] = before and string.format('%.0f', total) or 0 -- the first call: the history begins with the running minute
  end
  if last > 0 then
    redis.call('HSET', history, (minute - 1) % 60, table.concat(row, '', 1, last))
    redis.call('PEXPIRE', history, KEPT_MS)
  end
  redis.call('HSET', counts, 'row', minute .. ' ' .. table.concat(totals, ' '))
end
