-- List the deliveries that consumers hold, in the order in which their jobs were promoted, without those that wait for
-- their next run in an ordered group.
-- uses: clock, fields, parts, put_off
-- KEYS: 1 ready
-- ARGV: 1 entry id to begin with, 2 entry id to end with, 3 most deliveries of each group looked at
-- Returns: {entry id of the last one looked at or "" if that was all, then for each delivery: entry id, group, consumer,
--          deliveries so far, job id, due_ms, attempt}.
-- One call returns all deliveries of an entry.
local ready, first, last, most = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local held, edge = {}, nil
for _, info in ipairs(redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
  local fields = fields_of(info)
  local group = fields['name']
  local pending = fields['pending'] > 0 and redis.call('XPENDING', ready, group, first, last, most) or {}
  for _, one in ipairs(pending) do held[#held + 1] = {one[1], group, one[2], one[4]} end
  local looked_to = #pending == most and pending[most][1]
  if looked_to and (not edge or after(edge, looked_to)) then edge = looked_to end
end
table.sort(held, function(a, b) return after(b[1], a[1]) or (a[1] == b[1] and a[2] < b[2]) end)
local reply = {edge or ''}
for _, one in ipairs(held) do
  local entry, group = one[1], one[2]
  if edge and after(entry, edge) then break end
  local found = redis.call('XRANGE', ready, entry, entry)[1]
  local fields = found and #found[2] >= 8 and found[2]
  if fields and (not fields[10] or fields[10] == group) then -- a retry of another group is only skipped
    local due, record = next_run(order_of(ready, group), entry)
    if not due or tonumber(due) <= now_ms() then
      local attempt = due and tostring(string.byte(record, 8)) or fields[6]
      for _, value in ipairs({entry, group, one[3], one[4], fields[2], due or fields[4], attempt}) do
        reply[#reply + 1] = value
      end
    end
  end
end
return reply
