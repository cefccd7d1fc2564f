-- Find members of bundles whose end was not counted, and count it.
-- uses: clock, full, life, head_parts, fields, hint, outgoing, bundles
-- KEYS: 1 bundles, 2 jobs, 3 ready, 4 buried, 5 dead, 6 outgoing
-- ARGV: 1 near channel, 2 cursor, "0" at first, 3 about how many fields are looked at
-- Returns: {the next cursor, "0" at the end, how many were counted, then bundles without a member left here}.
-- Programs that do not know of bundles (workers of an earlier release, consumers in other languages) end members without
-- counting them, and entries that are trimmed or deleted end nowhere. A member of which nothing is alive has ended.
local bundles, jobs, ready, buried, dead, outgoing = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local near, cursor, most = unpack(ARGV)
local page = redis.call('HSCAN', bundles, cursor, 'COUNT', most)
local groups, ends, seen, reply = {}, {}, {}, {page[1], 0}
for _, info in ipairs(#page[2] > 0 and redis.call('EXISTS', ready) == 1 and redis.call('XINFO', 'GROUPS', ready) or {}) do
  groups[#groups + 1] = info[2]
end
local function look_at(life, stands, dead_in, id)
  if redis.call('HEXISTS', jobs, id) == 1 then return end -- alive; or another job has its id, which will end as well
  for _, group in ipairs(groups) do
    local entry = redis.call('HGET', buried, id .. '\31' .. group)
    local found = entry and redis.call('XRANGE', dead, entry, entry)[1]
    if found and life_of(fields_of(found[2])['record'] or '') == life then dead_in = dead_in - 1 end
  end
  if stands == LEFT then
    for _ = dead_in, -1 do ends[#ends + 1] = {life, 'buried'} end
    ends[#ends + 1] = {life, 'done'}
  end
end
local function is_over(text)
  local members, done, dead_ones, cancelled = string.match(text, '^(%d+) (%d+) (%d+) (%d+) %d+ %a+$')
  return members and members - done - dead_ones - cancelled == 0
end
for n = 1, #page[2], 2 do
  local life = string.match(page[2][n], '^\31(.*)$')
  local stands, dead_in, id = string.match(page[2][n + 1], '^(%a)(%d+)\31[^\31]*\31(.*)$')
  if life and stands and not seen[life] then
    seen[life] = true
    look_at(life, stands, tonumber(dead_in), id)
  elseif is_over(page[2][n + 1]) then
    reply[#reply + 1] = page[2][n]
  end
end
if #ends > 0 then
  write_though_full(bundles)
  count_ends(bundles, outgoing, near, ends)
end
reply[2] = #ends
return reply
