-- Places: where a page of a sorted set begins, and the members in a stretch of one.

-- part: place
-- comes_after(a, b): whether a comes after b byte by byte: Lua's own comparison goes by the server's locale.
-- place_behind(set, score, member): how many members of a sorted set come up to this one, itself included; with "" as
-- member, how many have a lower score. Members of one score are in the order of their bytes, and a binary search finds the
-- place. So a page begins where the last one ended, whatever came or went between the two.
local function comes_after(a, b)
  for n = 1, math.min(#a, #b) do
    local x, y = string.byte(a, n), string.byte(b, n)
    if x ~= y then return x > y end
  end
  return #a > #b
end
local function place_behind(set, score, member)
  local first = redis.call('ZCOUNT', set, '-inf', '(' .. score)
  if member == '' then return first end
  local last = first + redis.call('ZCOUNT', set, score, score)
  while first < last do
    local middle = math.floor((first + last) / 2)
    if comes_after(redis.call('ZRANGE', set, middle, middle)[1], member) then last = middle else first = middle + 1 end
  end
  return first
end

-- part: stretch
-- stretch(set, from, to, score, member, limit, is_backwards): up to `limit` members with scores from `from` to `to`, after
-- `member` with `score` (nil: from the beginning), or before it if `is_backwards`. Returns the members, their scores, and
-- whether that was all.
local function stretch(set, from, to, score, member, limit, is_backwards)
  local first
  if is_backwards then
    local last = place_behind(set, score or to, member or '')
    local before = last - 1
    if score and last > 0 and redis.call('ZRANGE', set, before, before)[1] == member then last = before end
    first = math.max(last - limit, 0)
    limit = last - first
  else
    first = place_behind(set, score or from, member or '')
  end
  local seen = limit > 0 and redis.call('ZRANGE', set, first, first + limit - 1, 'WITHSCORES') or {}
  local members, scores, lowest, highest = {}, {}, tonumber(from), tonumber(to)
  for n = 1, #seen, 2 do
    local at = is_backwards and #seen - n or n
    local its = tonumber(seen[at + 1])
    if its < lowest or its > highest then return members, scores, true end
    members[#members + 1], scores[#scores + 1] = seen[at], seen[at + 1]
  end
  return members, scores, is_backwards and first == 0 or not is_backwards and #members < limit
end

-- part: stretch_due
-- stretch_due(delayed, from, to, score, member, limit, is_backwards): as stretch, for a range of due times: first those that are
-- not held back (see held), then those that are. Returns also the place of the last one as text: "score member", or "end ".
local function stretch_due(delayed, from, to, score, member, limit, is_backwards)
  local is_in_held = score and is_held(tonumber(score))
  local function ends(held)
    local first = held > 0 and math.max(from + held, held) or from -- a place before that would not say that it is in there
    return string.format('%.2f', first), string.format('%.2f', math.min(tonumber(to), HELD - 1) + held)
  end
  local first, last = ends(is_in_held and HELD or 0)
  local members, scores, is_all = stretch(delayed, first, last, score, member, limit, is_backwards)
  if not is_all then return members, scores, false, scores[#scores] .. ' ' .. members[#members] end
  first, last = ends(HELD)
  if is_in_held or redis.call('ZCOUNT', delayed, first, last) == 0 then return members, scores, true, 'end ' end
  return members, scores, false, (is_backwards and last or first) .. ' '
end
