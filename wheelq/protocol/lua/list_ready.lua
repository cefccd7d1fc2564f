-- List promoted jobs that some group has not been given yet, in the order in which they were promoted.
-- uses: fields, parts
-- KEYS: 1 ready
-- ARGV: 1 entry id to begin with, 2 entry id to end with, 3 most entries looked at
-- Returns: {entry id of the last one looked at or "" if that was all, then for each entry: its id, job id, due_ms, attempt,
--          the only group it concerns or ""}.
local ready, first, last, most = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local read_to, least = {}, nil
for _, info in ipairs(redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
  local fields = fields_of(info)
  local at = fields['last-delivered-id']
  read_to[fields['name']] = at
  if not least or after(least, at) then least = at end
end
if least and (first == '-' or not after(string.gsub(first, '%(', ''), least)) then first = '(' .. least end
local seen = redis.call('XRANGE', ready, first, last, 'COUNT', most)
local reply = {#seen == most and seen[most][1] or ''}
for _, entry in ipairs(seen) do
  local fields = entry[2]
  local only = fields[10]
  -- A retry concerns one group. If that group is gone, or was given the retry, nobody has to run it.
  local is_unread = #fields >= 8 and (not only or (read_to[only] and after(entry[1], read_to[only])))
  if is_unread then
    for _, value in ipairs({entry[1], fields[2], fields[4], fields[6], only or ''}) do reply[#reply + 1] = value end
  end
end
return reply
