-- Close a bundle, so that it takes no more members, or cancel it, so that nothing follows it.
-- uses: clock, full, pack, field, home
-- KEYS: 1 bundles of the shard that keeps the bundle
-- ARGV: 1 bundle, 2 "closed" or "cancelled"
-- Returns: its shards; {0} there is no such bundle, or it has ended.
-- May be repeated: whoever closes a bundle then closes it in each of these shards.
local bundles, bundle, state = KEYS[1], ARGV[1], ARGV[2]
local home = home_of(bundles, bundle)
if not home then return {0} end
write_though_full(bundles)
if home[1] ~= 'cancelled' then
  home[1] = state
  keep_home(bundles, nil, nil, bundle, home)
end
local reply = {}
for n = 4, #home, 2 do reply[#reply + 1] = home[n] end
return reply
