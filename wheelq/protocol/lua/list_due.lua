-- List jobs that wait for their first run, or jobs that wait for a retry, in order of due time.
-- uses: place
-- KEYS: 1 delayed, 2 jobs
-- ARGV: 1 from (score), 2 to (score), 3 the last member of the page before, which has the score in 1, or "",
--       4 "waiting" or "retrying", 5 most members looked at, 6 most bytes of records
-- Returns: {score and member of the last one looked at, both "" if that was all, then for each job: member, score, record
--          of a retry or ""}.
-- A call that finds little ends as well, and tells where to continue.
local delayed, jobs = KEYS[1], KEYS[2]
local from, to, member, state = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local limit, bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local first = place_behind(delayed, from, member)
local seen = redis.call('ZRANGE', delayed, first, first + limit - 1, 'WITHSCORES')
local reply = {'', ''}
if #seen == 2 * limit and tonumber(seen[#seen]) <= to then reply = {seen[#seen], seen[#seen - 1]} end
for n = 1, #seen, 2 do
  if tonumber(seen[n + 1]) > to then break end
  local is_retry = string.find(seen[n], '\31', 1, true) ~= nil
  if is_retry == (state == 'retrying') then
    local record = is_retry and redis.call('HGET', jobs, seen[n]) or ''
    bytes = bytes - #record
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = seen[n], seen[n + 1], record
    if bytes < 0 and n + 1 < #seen then
      reply[1], reply[2] = seen[n + 1], seen[n]
      break
    end
  end
end
return reply
