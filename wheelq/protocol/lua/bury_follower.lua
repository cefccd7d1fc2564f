-- Put a follower among the dead of its topic that could not be scheduled there.
-- uses: clock, life, head_parts, fields, hint, outgoing, bundles, remove_dead, trim_dead, count
-- KEYS: 1 dead, 2 buried, 3 counts, 4 bundles, 5 outgoing
-- ARGV: 1 id, 2 due_ms, 3 error, 4 record, 5 dead_retention_ms, 6 most dead jobs, 7 near channel
-- Returns: id of the dead entry; of the earlier one, if this very job is there already.
local dead, buried, counts, bundles, outgoing = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local near, ends = ARGV[7], {}
local id, due, error_text, record = unpack(ARGV)
local pointer = id .. '\31'
local earlier = redis.call('HGET', buried, pointer)
local found = earlier and redis.call('XRANGE', dead, earlier, earlier)[1]
if found and life_of(fields_of(found[2])['record'] or '') == life_of(record) then return earlier end
local dead_id = redis.call('XADD', dead, '*', 'id', id, 'due', due, 'attempt', 1, 'group', '', 'reason', 'undelivered',
  'error', error_text, 'traceback', '', 'first_due', due, 'entry', '', 'record', record)
redis.call('HSET', buried, pointer, dead_id)
trim_dead(dead, buried, tonumber(ARGV[5]), tonumber(ARGV[6]), now_ms(), ends)
count(counts, 'buried\31', 1)
count_ends(bundles, outgoing, near, ends)
return dead_id
