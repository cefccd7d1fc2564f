-- Forget a part of the jobs that no group has to run any more, and of the retries of a group that is being removed.
-- uses: clock, full, stored, parts, life, head_parts, unfinished, finish, retries, hint, permits, tell, outgoing, bundles, ended_members
-- KEYS: 1 jobs, 2 delayed, 3 ready, 4 retries, 5 groups, 6 news, 7 bundles, 8 outgoing
-- ARGV: 1 group that is being removed, 2 cursor, 3 about how many to look at, 4 near channel
-- Returns: {cursor, how many were forgotten}; {} the group is not being removed, or is here again.
-- If there is no other group, jobs promoted after the removal began wait for the next group that is made.
local jobs, delayed, ready, retries, groups, news = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local bundles, outgoing, near = KEYS[7], KEYS[8], ARGV[4]
local group, cursor, count = ARGV[1], ARGV[2], ARGV[3]
local last = redis.call('HGET', groups, group) or ''
if last == '' then return {} end
local others, own_read_to = {}, nil
if redis.call('EXISTS', ready) == 1 then
  others, own_read_to = groups_of(ready, group)
end
if own_read_to then return {} end
local gone, ended, entries, dues, waiting, firsts, outcomes, seen = {}, {}, {}, {}, {}, {}, {}, {}

local function is_needed(entry, id)
  if #others == 0 then return after(entry, last) end
  return needed(ready, jobs, others, entry, id, is_gone(ready, entry))
end

local function look(member, stored)
  local cut, is_record = string.find(member, '\31', 1, true), not is_entry(stored)
  if not cut then
    if not (is_record or seen[member]) and not is_needed(stored, member) then
      seen[member] = true
      gone[#gone + 1], ended[#ended + 1], firsts[#firsts + 1] = member, member, stored
      outcomes[#firsts] = #others > 0 and 'done' or 'cancelled'
    end
    return
  end
  if string.match(member, '^[^\31]*', cut + 1) == group then
    local id = string.sub(member, 1, cut - 1)
    local first = redis.call('HGET', jobs, id)
    if first then look(id, first) end -- now, because its record may be only here
    gone[#gone + 1] = member
    if is_record then waiting[#waiting + 1] = member else entries[#entries + 1] = stored end
  end
end

local page = redis.call('HSCAN', jobs, cursor, 'COUNT', count)
for n = 1, #page[2], 2 do look(page[2][n], page[2][n + 1]) end
if #gone > 0 then
  write_though_full(jobs)
  local lives = redis.call('EXISTS', bundles) == 1 and members_of(ready, firsts) or {}
  for n, life in ipairs(lives) do
    local again = life == '' and redis.call('HGET', jobs, ended[n] .. '\31' .. group) -- its first entry is gone
    if again and not is_entry(again) and bundle_of(again) then lives[n], outcomes[n] = life_of(again), 'cancelled' end
  end
  redis.call('HDEL', jobs, unpack(gone))
  tell_ended(news, ended)
  count_finished(bundles, outgoing, near, lives, ended, gone, outcomes)
end
if #waiting > 0 then
  for _, due in ipairs(redis.call('ZMSCORE', delayed, unpack(waiting))) do dues[#dues + 1] = due or nil end
  redis.call('ZREM', delayed, unpack(waiting))
  count_retries(retries, dues, -1)
end
if #entries > 0 then
  redis.call('XDEL', ready, unpack(entries))
  give_back(ready, group, entries)
end
return {page[1], #gone}
