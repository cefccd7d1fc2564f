-- A delivery failed: acknowledge it and let the job wait for its next attempt, in this group only.
-- uses: clock, full, owned, parts, finish
-- KEYS: 1 ready, 2 jobs, 3 delayed, 4 horizon
-- ARGV: 1 group, 2 consumer, 3 entry id, 4 id, 5 pause_ms, 6 near channel
-- Returns: due_ms of the next attempt; 0 when the delivery was not the caller's any more (nothing changed).
-- One step, so that the job is never neither pending nor waiting. The new attempt is written before the old one is
-- acknowledged. `jobs[id]` keeps pointing at the first entry, so the id stays taken until the job is finished.
local ready, jobs, delayed, horizon = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, consumer, entry, id, pause_ms, near = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if not owns(ready, group, consumer, entry) then return 0 end
write_though_full(ready)
local found = redis.call('XRANGE', ready, entry, entry)[1]
if not found then -- somebody deleted it: there is nothing left to run
  redis.call('XACK', ready, group, entry)
  finish(ready, jobs, group, {entry}, {id})
  return 0
end
local record = found[2][8]
local due = due_ms('+' .. pause_ms)
local member = id .. '\31' .. group
redis.call('ZADD', delayed, due, member)
redis.call('HSET', jobs, member, string.sub(record, 1, 1) .. string.char(string.byte(record, 2) + 1) .. string.sub(record, 3))
redis.call('XACK', ready, group, entry)
if due <= tonumber(redis.call('GET', horizon) or -1) then
  redis.call('PUBLISH', near, string.format('%.0f %s', due, member))
end
return due
