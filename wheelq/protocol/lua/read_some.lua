-- Read new deliveries of up to 500 shards, up to a limit for all of them together.
-- KEYS: the ready streams
-- ARGV: 1 group, 2 consumer, 3 most deliveries in all
-- Returns: for each stream, until the limit is reached: {id up to which the group has been given everything, or "" if
--          there may be more, {entry id, fields}, …}; the error's text in place of a list where a stream cannot be read.
-- A stream that cannot be read must not fail the call, because the caller already owns the deliveries of the others.
local group, consumer, left = ARGV[1], ARGV[2], tonumber(ARGV[3])
local function read_to(ready)
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
    local fields = {}
    for n = 1, #info, 2 do fields[info[n]] = info[n + 1] end
    if fields['name'] == group then return fields['last-delivered-id'] end
  end
end
local reply = {}
for n, ready in ipairs(KEYS) do
  if left <= 0 then break end
  local share = math.max(1, math.floor(left / (#KEYS - n + 1)))
  local found = redis.pcall('XREADGROUP', 'GROUP', group, consumer, 'COUNT', share, 'STREAMS', ready, '>')
  if found and found['err'] then
    reply[n] = found['err']
  else
    local entries = found and found[1] and found[1][2] or {}
    local last = entries[#entries]
    reply[n] = {#entries < share and (last and last[1] or read_to(ready)) or ''}
    for _, entry in ipairs(entries) do table.insert(reply[n], entry) end
    left = left - #entries
  end
end
return reply
