-- List finished jobs that are kept, the latest first.
-- uses: place
-- KEYS: 1 ended, 2 done
-- ARGV: 1 score to begin with, 2 score to end with, 3 the last member of the page before, which has the score in 1, or ""
--       to begin below that score, 4 most members looked at, 5 most bytes of kept records
-- Returns: {score and member of the last one looked at, both "" if that was all, then for each job: id, when it ended, its
--          kept record}.
local ended, done = KEYS[1], KEYS[2]
local from, to, member, most, bytes = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local last = place_behind(ended, from, member) - 1
if member ~= '' and last >= 0 and redis.call('ZRANGE', ended, last, last)[1] == member then last = last - 1 end
local first = math.max(last - most + 1, 0)
local limit = last - first + 1
local seen = limit > 0 and redis.call('ZRANGE', ended, first, first + limit - 1, 'WITHSCORES') or {}
local reply = {'', ''}
if first > 0 and #seen > 0 and tonumber(seen[2]) >= to then reply = {seen[2], seen[1]} end
for n = #seen - 1, 1, -2 do
  if tonumber(seen[n + 1]) < to then break end
  if not string.find(seen[n], '\31', 1, true) then -- a member with a separator holds earlier attempts (see keep_done)
    local kept = redis.call('HGET', done, seen[n]) or ''
    bytes = bytes - #kept
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = seen[n], seen[n + 1], kept
    if bytes < 0 and n > 1 then
      reply[1], reply[2] = seen[n + 1], seen[n]
      break
    end
  end
end
return reply
