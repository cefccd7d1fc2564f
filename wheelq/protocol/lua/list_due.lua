-- List jobs that wait for their first run, or jobs that wait for a retry, in order of due time.
-- uses: clock, fields, stored, place, put_off
-- KEYS: 1 delayed, 2 jobs, 3 ready
-- ARGV: 1 from (score), 2 to (score), 3 the last member of the page before, which has the score in 1, or "",
--       4 "waiting" or "retrying", 5 most members looked at, 6 most bytes of records
-- Returns: {score and member of the last one looked at, both "" if that was all, then for each job: member, score, record
--          of a retry or ""}.
-- A call that finds little ends as well, and tells where to continue.
local delayed, jobs, ready = KEYS[1], KEYS[2], KEYS[3]
local from, to, member, state = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local limit, bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local first = place_behind(delayed, from, member)
local seen = redis.call('ZRANGE', delayed, first, first + limit - 1, 'WITHSCORES')
local rows, edge = {}, #seen == 2 * limit and tonumber(seen[#seen]) <= to and {seen[#seen - 1], seen[#seen]}
for n = 1, #seen, 2 do
  local is_retry = string.find(seen[n], '\31', 1, true) ~= nil
  if tonumber(seen[n + 1]) <= to and is_retry == (state == 'retrying') then rows[#rows + 1] = {seen[n], seen[n + 1]} end
end
local function is_behind(row, other)
  local score, its = tonumber(row[2]), tonumber(other[2])
  return score > its or (score == its and comes_after(row[1], other[1]))
end
-- Those of an ordered group are no more than its consumer holds.
local MOST_HELD = 2000
local function add_kept(order, group)
  local held = redis.call('HSCAN', order, '0', 'COUNT', MOST_HELD)[2]
  for n = 1, #held, 2 do
    local entry, due, record = held[n], put_off(held[n + 1])
    local is_waiting = due and is_entry(entry) and tonumber(due) > now_ms()
      and #redis.call('XPENDING', ready, group, entry, entry, 1) > 0
    local found = is_waiting and redis.call('XRANGE', ready, entry, entry)[1]
    local row = found and {found[2][2] .. '\31' .. group, due, record}
    if row and tonumber(due) <= to and is_behind(row, {member, from}) and not (edge and is_behind(row, edge)) then
      rows[#rows + 1] = row
    end
  end
end
local has_groups = state == 'retrying' and redis.call('EXISTS', ready) == 1
for _, info in ipairs(has_groups and redis.call('XINFO', 'GROUPS', ready) or {}) do
  local group = fields_of(info)['name']
  add_kept(order_of(ready, group), group)
end
if has_groups then table.sort(rows, function(a, b) return is_behind(b, a) end) end
local reply = {'', ''}
for n, row in ipairs(rows) do
  local record = row[3] or (state == 'retrying' and redis.call('HGET', jobs, row[1])) or ''
  bytes = bytes - #record
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = row[1], row[2], record
  if bytes < 0 and n < #rows then
    edge = row
    break
  end
end
if edge then reply[1], reply[2] = edge[2], edge[1] end
return reply
