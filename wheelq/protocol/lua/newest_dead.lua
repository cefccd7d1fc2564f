-- List the errors of the newest dead jobs, without their records, which may be many and large.
-- uses: fields
-- KEYS: 1 dead
-- ARGV: 1 entry id to begin with ("+": the newest), 2 most entries, 3 most bytes of each error
-- Returns: {entry id, job id, group, reason, error, attempt} of each, the newest first.
local dead, first, most, bytes = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local reply = {}
for n, entry in ipairs(redis.call('XREVRANGE', dead, first, '-', 'COUNT', most)) do
  local of = fields_of(entry[2])
  local error = string.sub(of.error or '', 1, bytes)
  reply[n] = {entry[1], of.id or '', of.group or '', of.reason or '', error, of.attempt or ''}
end
return reply
