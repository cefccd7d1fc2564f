-- trim(ready, retention_ms, now, most): removes from the stream what every group has acked and retention does not keep;
-- with `most` not many more than that. Returns how many were removed.
-- Never removes an entry that some group has not read or not acked: the cut is the least, over the groups, of its
-- lowest pending entry or, with nothing pending, the one after the last it was given.
local function trim(ready, retention_ms, now, most)
  local least
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', ready)) do
    local fields = {}
    for n = 1, #info, 2 do fields[info[n]] = info[n + 1] end
    local cut
    if fields['pending'] > 0 then
      cut = redis.call('XPENDING', ready, fields['name'])[2]
    else
      local ms, seq = parts(fields['last-delivered-id'])
      cut = string.format('%.0f-%.0f', ms, seq + 1)
    end
    if not least or after(least, cut) then least = cut end
  end
  if not least then return 0 end
  if retention_ms > 0 then
    local kept = string.format('%.0f-0', now - retention_ms)
    if after(least, kept) then least = kept end
  end
  -- The server removes whole nodes of about a hundred entries; what is left of the last one is taken exactly.
  local removed = most and redis.call('XTRIM', ready, 'MINID', '~', least, 'LIMIT', most) or 0
  if most and removed >= most then return removed end
  return removed + redis.call('XTRIM', ready, 'MINID', least)
end
