-- pack(a, b, …): the fields as one string, each as "3:abc", so that any bytes may stand in them.
-- field(packed, from) → the field that begins there, and where the next one does; nil at the end.
local function pack(...)
  local parts = {}
  for n, part in ipairs({...}) do parts[n] = #part .. ':' .. part end
  return table.concat(parts)
end
local function field(packed, from)
  local colon = string.find(packed, ':', from, true)
  if not colon then return nil end
  local to = colon + tonumber(string.sub(packed, from, colon - 1))
  return string.sub(packed, colon + 1, to), to + 1
end
