-- Take what shards report of their members of a bundle; if none is left anywhere, leave the follower in `outgoing`.
-- uses: clock, full, hint, outgoing, pack, field, home
-- KEYS: 1 bundles of the shard that keeps the bundle, 2 done, 3 ended, 4 outgoing
-- ARGV: 1 near channel, 2 bundle, then for each shard "name members done dead cancelled version"
-- Returns: {1} taken; {3, entry, values} it has ended, and its follower is in this entry; {3} it has ended, and was
--          cancelled; {2} `outgoing` has no room: nothing was done; {0} there is no such bundle, or it has ended before.
-- A report that is not newer than the last one of its shard changes nothing, so it may come twice, and late.
local bundles, done, ended, outgoing, near, bundle = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], ARGV[2]
local GONE, TAKEN, FULL, OVER, SHARDS = 0, 1, 2, 3, 4
local home = home_of(bundles, bundle)
if not home then return {GONE} end
if room_in(outgoing) < 1 then return {FULL} end
write_though_full(bundles)
local function numbers_in(report)
  local numbers = {}
  for number in string.gmatch(report, '%d+') do numbers[#numbers + 1] = tonumber(number) end
  return numbers
end
local places = {}
for n = SHARDS, #home, 2 do places[home[n]] = n + 1 end
for n = 3, #ARGV do
  local name, report = string.match(ARGV[n], '^(%S+) (.*)$')
  local at = places[name]
  if at and (numbers_in(report)[5] or -1) > (numbers_in(home[at])[5] or -1) then home[at] = report end
end
local is_over, waits_for_dead = home[1] ~= 'open', home[1] == 'closed' and home[2] == 'all_done'
for n = SHARDS + 1, #home, 2 do
  local members, is_done, dead, cancelled = unpack(numbers_in(home[n]))
  local is_quiet = members and members == is_done + dead + cancelled
  is_over = is_over and is_quiet and (dead == 0 or not waits_for_dead)
end
if not is_over or home[1] == 'cancelled' then
  keep_home(bundles, done, ended, bundle, home, is_over)
  return {is_over and OVER or TAKEN}
end
local args, text, from = {}, nil, 1
repeat
  text, from = field(home[3], from)
  args[#args + 1] = text
until not text
local size = redis.call('XLEN', outgoing)
local entry = string.match(send_on(outgoing, args, 1), '^%S+')
hint_outgoing(near, size)
home[1] = 'ended'
keep_home(bundles, done, ended, bundle, home, true)
local values, found = {}, redis.call('XRANGE', outgoing, entry, entry)[1][2]
for n = 2, #found, 2 do values[n / 2] = found[n] end
return {OVER, entry, values}
