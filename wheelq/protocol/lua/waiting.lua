-- Tell a page of the jobs that wait, in order of due time.
-- KEYS: 1 delayed
-- ARGV: 1 from (score), 2 to (score), 3 member after which to go on, among those with the score `from` ("": with the
--       first of them), 4 how many at most
-- Returns: {member, score, ...}.
-- Members with one score are in order of their bytes, and where to go on is found by halving: no job is told twice or
-- left out because others came or went between two pages.
local delayed = KEYS[1]
local from, to, member, limit = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

-- Compared byte by byte: Lua's own comparison goes by the server's locale.
local function comes_after(a, b)
  for n = 1, math.min(#a, #b) do
    local x, y = string.byte(a, n), string.byte(b, n)
    if x ~= y then return x > y end
  end
  return #a > #b
end

local first = redis.call('ZCOUNT', delayed, '-inf', '(' .. from)
if member ~= '' then
  local last = first + redis.call('ZCOUNT', delayed, from, from)
  while first < last do
    local middle = math.floor((first + last) / 2)
    if comes_after(redis.call('ZRANGE', delayed, middle, middle)[1], member) then last = middle else first = middle + 1 end
  end
end
local found = redis.call('ZRANGE', delayed, first, first + limit - 1, 'WITHSCORES')
while #found > 0 and tonumber(found[#found]) > to do
  found[#found] = nil
  found[#found] = nil
end
return found
