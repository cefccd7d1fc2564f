-- Let a shard take no more members of a bundle.
-- uses: clock, full, head_parts, hint, outgoing, bundles
-- KEYS: 1 bundles
-- ARGV: 1 bundle
-- Returns: what the shard reports of the bundle (see `tally_bundle`); "" while members are left here.
-- A repeated call changes nothing, so the shard forgets the bundle when a report arrives that was on its way before.
local bundles, bundle = KEYS[1], ARGV[1]
write_though_full(bundles) -- also where nothing else is written: a replica must not answer
local totals, state = totals_in(bundles, bundle)
if not totals then return report_of(bundles, {0, 0, 0, 0, 0}) end
if state == 'open' then put_totals(bundles, bundle, totals, 'closed') end
return left_in(totals) == 0 and report_of(bundles, totals) or ''
