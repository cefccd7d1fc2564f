-- Forget a bundle in a shard whose last report has arrived.
-- uses: clock, full, head_parts, hint, outgoing, bundles
-- KEYS: 1 bundles, 2 outgoing
-- ARGV: 1 bundle, 2 entry of the report in `outgoing`, or "", 3 its version, 4 1: the bundle has ended
-- Returns: 1 forgotten, 0 it has members left or dead here, or has changed since: only the entry is removed.
local bundles, outgoing, bundle, entry, version, has_ended = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
write_though_full(bundles)
if entry ~= '' then redis.call('XDEL', outgoing, entry) end
local totals = totals_in(bundles, bundle)
if not totals or left_in(totals) > 0 or totals[NUMBERS] ~= tonumber(version) then return 0 end
if totals[3] > 0 and not has_ended then return 0 end
return redis.call('HDEL', bundles, bundle)
