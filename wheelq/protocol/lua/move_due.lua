-- Give other due times to the next part of the waiting jobs that are due in a range.
-- uses: clock, score, place, stretch, stretch_due, hint, horizon
-- KEYS: 1 delayed, 2 horizon, 3 replays
-- ARGV: 1 near channel, 2 name of this move, 3 from (score), 4 to (score), 5 the due time of all of them ("+ms" from the
--       first call, or "ms" since the epoch), or "" to move each by 6, 6 how many ms (negative: to an earlier time, but
--       never before the first call; one that was due before it stays, unless it is held back), 7 most members looked at
--       (up to 500), 8 ms for which its progress is kept
-- Returns: {1 if that was all, moved so far}.
-- The progress is stored under the name and moves in the same step, so a repeated call continues where the last one
-- ended, and moves each job once. The script starts at the end of the range from which it cannot meet a job again at its
-- new place. A job that is held back, but due after the first call, was moved by it before: it stays where it is, and so
-- does a retry. The script decides whether a job is promoted or moved: see `reschedule`.
local delayed, horizon, replays = KEYS[1], KEYS[2], KEYS[3]
local near, name, from, to, target, by = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local limit, keep_ms = tonumber(ARGV[7]), ARGV[8]
local moved, fixed, score, member = string.match(redis.call('HGET', replays, name) or '', '^(%d+) (%d+) (%S+) (.*)$')
moved, fixed = tonumber(moved or 0), tonumber(fixed) or (target == '' and now_ms() or due_ms(target))
if score == 'end' then return {1, moved} end
local members, scores, is_all, next_place = stretch_due(delayed, from, to, score, member, limit, target == '' and by > 0)
local last, changes, hints = loaded_to(horizon), {}, {}
for n, id in ipairs(members) do
  local stands, its = due_of(scores[n]), tonumber(scores[n])
  local is_again = target == '' and is_held(its) and stands >= fixed
  local least = target == '' and by < 0 and not is_held(its) and math.min(stands, fixed) or fixed -- never a later time
  local due = target == '' and math.min(math.max(stands + by, least), LAST_MS) or fixed
  if due ~= stands and not is_again and not string.find(id, '\31', 1, true) then
    changes[#changes + 1], changes[#changes + 2] = score_of(due, unheld(its) - stands), id -- of the same priority
    moved = moved + 1
    if due <= last then hints[#hints + 1] = string.format('%.0f %s', due, id) end
  end
end
if #changes > 0 then
  redis.call('ZADD', delayed, unpack(changes))
  local text = #hints > 0 and table.concat(hints, '\n') or last < now_ms() and ANY
  if text then hint(near, text) end
end
redis.call('HSET', replays, name, string.format('%.0f %.0f %s', moved, fixed, next_place))
redis.call('PEXPIRE', replays, keep_ms)
return {is_all and 1 or 0, moved}
