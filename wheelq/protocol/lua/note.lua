-- Store the progress that handlers report of running jobs.
-- uses: owned
-- KEYS: 1 ready, 2 progress
-- ARGV: 1 group, 2 consumer, 3 ms after which it expires, unless the job ends before, then for each of up to 500
--       jobs: entry id, id, note
-- Returns: how many were written; a job that is no longer the caller's is skipped, because it may be finished.
local ready, progress = KEYS[1], KEYS[2]
local group, consumer, keep_ms = ARGV[1], ARGV[2], ARGV[3]
local written = 0
for n = 4, #ARGV, 3 do
  if owns(ready, group, consumer, ARGV[n]) then
    redis.call('HSET', progress, ARGV[n + 1] .. '\31' .. group, ARGV[n + 2])
    written = written + 1
  end
end
if written > 0 then redis.call('PEXPIRE', progress, keep_ms) end
return written
