-- Promote the named members that are due.
-- uses: clock, leader, score, by, ranked, emit, lateness, retries, count, promote
-- KEYS: 1 lease, 2 delayed, 3 jobs, 4 ready, 5 dead, 6 retries, 7 counts
-- ARGV: 1 token, 2 lease_ms, then up to 500 members
-- Returns: {1, now_us, lateness of those promoted, member, score, ...} with those that wait for a later time; {0} not the leader.
-- The sorted set alone says whether a member waits, and until when; cancelled ones are skipped.
local lease, delayed, jobs, ready, dead, retries, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local token, lease_ms = ARGV[1], ARGV[2]
if not leads(lease, token, lease_ms) then return {0} end
local last = by(now_ms())
local scores = redis.call('ZMSCORE', delayed, unpack(ARGV, 3))
local reply, members, dues, seen, found, is_ranked = {1, now_us(), {0}}, {}, {}, {}, 0, false
for n = 1, #scores do
  local member, score = ARGV[n + 2], scores[n]
  if score and not seen[member] then
    local due = tonumber(score)
    if due <= last then
      seen[member] = true
      found = found + 1
      members[found], dues[found] = member, due
      is_ranked = is_ranked or due % 1 ~= 0
    else
      reply[#reply + 1] = member
      reply[#reply + 1] = score
    end
  end
end
if is_ranked then
  members, dues = ranked(members, dues)
end
local _, _, lateness = promote_all(delayed, jobs, ready, dead, retries, members, dues, counts)
reply[3] = lateness
return reply
