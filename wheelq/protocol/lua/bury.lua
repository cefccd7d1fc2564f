-- A delivery is given up: put the job among the dead, with the reason, and acknowledge it.
-- uses: clock, full, owned, parts, finish, trim
-- KEYS: 1 ready, 2 jobs, 3 dead
-- ARGV: 1 group, 2 consumer, 3 entry id, 4 member, 5 reason, 6 error text, 7 retention_ms
-- Returns: id of the dead entry; "" when the delivery was not the caller's any more (nothing changed).
-- Dead entry fields: id, due, attempt, group, reason, error, record. Written before the acknowledgement, in one step.
local ready, jobs, dead = KEYS[1], KEYS[2], KEYS[3]
local group, consumer, entry, member, reason, error_text, retention_ms = unpack(ARGV)
if not owns(ready, group, consumer, entry) then return '' end
write_though_full(ready)
local found = redis.call('XRANGE', ready, entry, entry)[1]
-- Somebody deleted the entry, or added one that is none of wheelq's.
found = found and #found[2] >= 8 and found[2] or {'id', member, 'due', 0, 'attempt', 0, 'record', ''}
local buried = redis.call('XADD', dead, '*', 'id', found[2], 'due', found[4], 'attempt', found[6], 'group', group,
  'reason', reason, 'error', error_text, 'record', found[8])
redis.call('XACK', ready, group, entry)
finish(ready, jobs, group, {entry}, {member})
trim(ready, tonumber(retention_ms), now_ms())
return buried
