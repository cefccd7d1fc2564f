-- A delivery failed: acknowledge it and let the job wait for its next run, in this group only.
-- uses: clock, full, owned
-- KEYS: 1 ready, 2 jobs, 3 delayed, 4 horizon
-- ARGV: 1 group, 2 consumer, 3 entry id, 4 id, 5 pause_ms, 6 near channel, 7 record of the next run
-- Returns: due_ms of the next run; 0 when the delivery was not the caller's any more (nothing changed).
-- One step, so that the job is never neither pending nor waiting. The next run is written before the last one is
-- acknowledged. `jobs[id]` keeps pointing at the first entry, so the id stays taken until the job is finished. Where
-- another life of the id waits for its retry in this group (it was fired again), this one gets a member of its own.
local ready, jobs, delayed, horizon = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, consumer, entry, id, pause_ms, near, record = unpack(ARGV)
if not owns(ready, group, consumer, entry) then return 0 end
write_though_full(ready)
local due = due_ms('+' .. pause_ms)
local member = id .. '\31' .. group
local other = redis.call('HGET', jobs, member)
if other and string.byte(other) < 32 then member = member .. '\31' .. entry end -- a record: it waits
redis.call('ZADD', delayed, due, member)
redis.call('HSET', jobs, member, record)
redis.call('XACK', ready, group, entry)
if due <= tonumber(redis.call('GET', horizon) or -1) then
  redis.call('PUBLISH', near, string.format('%.0f %s', due, member))
end
return due
