-- ranked(members, dues): both in the order of scores, those of one score as they were.
local function ranked(members, dues)
  local order, sorted, scores = {}, {}, {}
  for n = 1, #members do order[n] = n end
  table.sort(order, function(a, b)
    local one, other = tonumber(dues[a]), tonumber(dues[b])
    if one == other then return a < b end
    return one < other
  end)
  for n, place in ipairs(order) do sorted[n], scores[n] = members[place], dues[place] end
  return sorted, scores
end
