-- Write a worker's heartbeat, even if the server is out of memory, because its jobs must go on then.
-- uses: clock, full
-- KEYS: 1 beats, 2 workers
-- ARGV: 1 worker, 2 its beat: a word that differs each time, a space, and its group, 3 its description, or "" to keep it
-- Returns: now_us, which tells the caller the server's time.
-- The beat is apart from the description because every worker writes its own and reads all others every 1.3 s.
local beats, workers = KEYS[1], KEYS[2]
local worker, beat, report = ARGV[1], ARGV[2], ARGV[3]
write_though_full(beats)
redis.call('HSET', beats, worker, beat)
if report ~= '' then redis.call('HSET', workers, worker, report) end
return now_us()
