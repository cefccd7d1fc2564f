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
