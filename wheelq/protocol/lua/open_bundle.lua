-- Make a bundle, or note shards that are to have members of it.
-- uses: clock, pack, field, home
-- KEYS: 1 bundles of the shard that keeps the bundle, 2 done
-- ARGV: 1 bundle, 2 "all_done", "all_ended", or "" to make none, 3 its follower, packed, then the names of shards
-- Returns: 1 noted, 0 it takes no members any more, -1 there is no such bundle.
-- A shard is noted before it gets members, so that whoever closes the bundle closes it there, too. Only the removal of its
-- topic makes a shard report to an open bundle. If the topic is used again, the home keeps that report under a shard number
-- that does not exist, and the shard will send another.
local bundles, done, bundle, when = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local FIRST, SHARDS, REMOVED = 4, 4, 1000000
local home = home_of(bundles, bundle) or when ~= '' and {'open', when, ARGV[3]}
if not home then return redis.call('HEXISTS', done, '\31bundle\31' .. bundle) == 1 and 0 or -1 end
if home[1] ~= 'open' then return 0 end
local known = {}
for n = SHARDS, #home, 2 do known[home[n]] = n + 1 end
for n = FIRST, #ARGV do
  local shard, at = ARGV[n], known[ARGV[n]]
  if at and home[at] ~= '' then
    home[#home + 1], home[#home + 2] = string.match(shard, '^.*:') .. REMOVED + #home, home[at]
    home[at] = ''
  elseif not at then
    home[#home + 1], home[#home + 2] = shard, ''
  end
end
keep_home(bundles, nil, nil, bundle, home)
return 1
