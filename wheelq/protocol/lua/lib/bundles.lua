-- Bundles: jobs whose ends are counted, so that another job follows when all of them have ended.

-- part: bundles
-- The hash `bundles` of a shard has, for each bundle with members here, a field "members done dead cancelled version
-- state", where the state is "open" (for more members) or "closed"; and for each member that is left or dead, a field
-- SEPARATOR life: "l" or "d", in how many groups it is dead, SEPARATOR, bundle, SEPARATOR, id. So a member counts once,
-- and a rerun, whose member has ended, counts nothing.
-- bundle_of(record): the bundle that its head names, or nil.
-- totals_in(bundles, bundle): its five numbers and its state; nil if it has no members here, or is forgotten.
-- put_totals(bundles, bundle, totals, state): stores them, in a new version. report_of(key, totals): what the shard of
-- this key reports of them: its name, and the numbers.
-- count_ends(bundles, outgoing, near, ends): counts what has become of members: {life, what}, where `what` is
-- "done" or "cancelled" (its last group has ended it), "buried", "unburied" (a dead job was removed), or "replayed". A closed
-- bundle with no member left here is reported through `outgoing`. Returns the entries of these
-- reports and their values.
local LEFT, DEAD, NUMBERS, REPORTS = 'l', 'd', 5, ':bundles'
local PLACES = {done = 2, d = 3, cancelled = 4}
local function bundle_of(record) return part_of(record, 'b') end
local function totals_in(bundles, bundle)
  local text, totals = redis.call('HGET', bundles, bundle) or '', {}
  for number in string.gmatch(text, '%d+') do totals[#totals + 1] = tonumber(number) end
  return #totals == NUMBERS and totals or nil, string.match(text, '%a+$')
end
local function left_in(totals) return totals[1] - totals[2] - totals[3] - totals[4] end
local function report_of(key, totals)
  local words = {string.match(key, '{(.-)}')}
  for n = 1, NUMBERS do words[n + 1] = string.format('%.0f', totals[n]) end
  return table.concat(words, ' ')
end
local function put_totals(bundles, bundle, totals, state)
  totals[NUMBERS] = math.max(totals[NUMBERS] + 1, tonumber(now_us()))
  redis.call('HSET', bundles, bundle, string.match(report_of(bundles, totals), ' (.*)$') .. ' ' .. state)
end
local function moved(what, stands, dead_in)
  if what == 'buried' then return stands, dead_in + 1 end
  if what == 'replayed' then return LEFT, math.max(dead_in - 1, 0) end
  if what ~= 'unburied' then return dead_in > 0 and DEAD or what, dead_in end
  dead_in = math.max(dead_in - 1, 0)
  return stands == DEAD and dead_in == 0 and 'cancelled' or stands, dead_in
end
local function put_counted(bundles, outgoing, near, bundle, totals, state, reports)
  put_totals(bundles, bundle, totals, state)
  if state ~= 'closed' or left_in(totals) > 0 then return end
  local size = redis.call('XLEN', outgoing)
  local values = {REPORTS, bundle, '0', '', 'bundle', report_of(bundles, totals), '', '', '', '', 0, 0}
  reports[#reports + 1], reports[#reports + 2] = put_outgoing(outgoing, values), values
  hint_outgoing(near, size)
end
local function count_ends(bundles, outgoing, near, ends)
  if #ends == 0 then return {} end
  local all, changed, reports, fields, values, kept, gone = {}, {}, {}, {}, {}, {}, {}
  for n = 1, #ends do fields[n] = '\31' .. ends[n][1] end
  local stored = redis.call('HMGET', bundles, unpack(fields))
  for n = 1, #fields do values[fields[n]] = stored[n] end
  for n = 1, #ends do
    local field, what = fields[n], ends[n][2]
    local value = values[field]
    if value then
      local stands, stood_dead_in, rest, bundle = string.match(value, '^(%a)(%d+)(\31([^\31]*).*)$')
      if not all[bundle] then
        all[bundle] = {totals_in(bundles, bundle)}
        changed[#changed + 1] = bundle
      end
      local totals = all[bundle][1]
      local becomes, dead_in = moved(what, stands, tonumber(stood_dead_in))
      if totals and PLACES[stands] then totals[PLACES[stands]] = totals[PLACES[stands]] - 1 end
      if totals and PLACES[becomes] then totals[PLACES[becomes]] = totals[PLACES[becomes]] + 1 end
      local stays = totals and (becomes == LEFT or becomes == DEAD) and becomes .. dead_in .. rest
      values[field], kept[field] = stays, stays or nil
      if not stays then gone[#gone + 1] = field end
    end
  end
  local written = {}
  for field, value in pairs(kept) do written[#written + 1], written[#written + 2] = field, value end
  if #written > 0 then redis.call('HSET', bundles, unpack(written)) end
  if #gone > 0 then redis.call('HDEL', bundles, unpack(gone)) end
  for _, bundle in ipairs(changed) do
    local totals, state = unpack(all[bundle], 1, 2)
    if totals then put_counted(bundles, outgoing, near, bundle, totals, state, reports) end
  end
  return reports
end

-- part: joining
-- bundle_for(bundles, record, jobs, ids): the bundle that the job of a call is to join, and whether it takes no members here.
-- With `jobs`, the call writes only ids of live jobs, so it needs no bundle in a shard that has none of its `ids`.
-- note_member(joining, ends, bundle, stored, record, id): adds a job that is written, perhaps in place of one that waits, whose
-- record is stored: what `join` takes, and what `count_ends` takes.
-- join(bundles, bundle, joining): lets the members join.
local function has_any(jobs, ids)
  for _, id in ipairs(ids) do
    if redis.call('HEXISTS', jobs, id) + redis.call('HEXISTS', jobs, id .. SECOND) > 0 then return true end
  end
  return false
end
local function bundle_for(bundles, record, jobs, ids)
  local bundle = bundles and bundle_of(record)
  local is_shut = bundle and select(2, totals_in(bundles, bundle)) ~= 'open'
  return bundle, is_shut and (not jobs or has_any(jobs, ids))
end
local function note_member(joining, ends, bundle, stored, record, id)
  local is_other = stored and bundle_of(stored) and life_of(stored) ~= life_of(record)
  if is_other then ends[#ends + 1] = {life_of(stored), 'cancelled'} end
  if not bundle then return end
  joining[#joining + 1], joining[#joining + 2] = '\31' .. life_of(record), 'l0\31' .. bundle .. '\31' .. id
end
local function join(bundles, bundle, joining)
  if #joining == 0 then return end
  local totals, state = totals_in(bundles, bundle)
  totals[1] = totals[1] + redis.call('HSET', bundles, unpack(joining))
  put_totals(bundles, bundle, totals, state)
end

-- part: ended_members
-- members_of(ready, entries): for each entry, the life of the member of a bundle in it; or "".
-- count_done(bundles, outgoing, near, fields): as `count_ends` for the members with these fields, which are done, if all of
-- them are of one bundle and dead in no group, as nearly always; else nil, and nothing is counted.
-- count_finished(bundles, outgoing, near, lives, ids, finished, outcomes): as `count_ends` for those deliveries of these lives and
-- ids whose jobs are among those that `finish` has forgotten; outcomes[n] is "done" or "cancelled".
local function members_of(ready, entries)
  local lives = {}
  for n, entry in ipairs(entries) do
    local found = redis.call('XRANGE', ready, entry, entry)[1]
    local record = found and found[2][8] or ''
    lives[n] = bundle_of(record) and life_of(record) or ''
  end
  return lives
end
local function count_done(bundles, outgoing, near, fields)
  local stored, reports = redis.call('HMGET', bundles, unpack(fields)), {}
  local mark, bundle = string.match(stored[1] or '', '^(l0\31([^\31]*)\31)')
  for n = 1, #fields do
    if not mark or not stored[n] or string.sub(stored[n], 1, #mark) ~= mark then return nil end
  end
  local totals, state = totals_in(bundles, bundle)
  if not totals then return nil end
  totals[2] = totals[2] + redis.call('HDEL', bundles, unpack(fields))
  put_counted(bundles, outgoing, near, bundle, totals, state, reports)
  return reports
end
local function count_finished(bundles, outgoing, near, lives, ids, finished, outcomes)
  local fields, places, found, gone, are_done = {}, {}, 0, nil, true
  for n, life in ipairs(lives) do
    local has_ended = life ~= '' and finished[n] == ids[n] -- nearly all of them
    if life ~= '' and not has_ended then
      if not gone then
        gone = {}
        for _, member in ipairs(finished) do gone[member] = true end
      end
      has_ended = gone[ids[n]]
    end
    if has_ended then
      found = found + 1
      fields[found], places[found] = '\31' .. life, n
      are_done = are_done and outcomes[n] == 'done'
    end
  end
  if found == 0 then return {} end
  local reports = are_done and count_done(bundles, outgoing, near, fields)
  if reports then return reports end
  local ends = {}
  for n, place in ipairs(places) do ends[n] = {lives[place], outcomes[place]} end
  return count_ends(bundles, outgoing, near, ends)
end

-- part: home
-- The shard 0 of the topic of a bundle's follower keeps the bundle: in `bundles` under "=bundle", and once it has ended in
-- `done`, for the topic's `keep_done_ms`: state ("open", "closed", "ended" or "cancelled"), when it ends ("all_done" or
-- "all_ended"), the follower packed (as `send_on` takes it), then each shard with members, and its latest report or "".
-- home_of(bundles, bundle): {state, when, follower, shard, report, …}, or nil.
-- keep_home(bundles, done, ended, bundle, home, is_over): stores it.
local function home_of(bundles, bundle)
  local stored = redis.call('HGET', bundles, '=' .. bundle)
  if not stored then return nil end
  local home, text, from = {}, nil, 2
  repeat
    text, from = field(stored, from)
    home[#home + 1] = text
  until not text
  return home
end
local function keep_home(bundles, done, ended, bundle, home, is_over)
  local stored = '=' .. pack(unpack(home))
  if not is_over then return redis.call('HSET', bundles, '=' .. bundle, stored) end
  local name = '\31bundle\31' .. bundle
  redis.call('HDEL', bundles, '=' .. bundle)
  redis.call('HSET', done, name, stored)
  redis.call('ZADD', ended, string.format('%.0f', now_ms()), name)
end
