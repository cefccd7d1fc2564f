-- Claim the followers that were not carried in time by the process that settled their jobs.
-- uses: clock, full, hint, parts, outgoing, sent_again
-- KEYS: 1 outgoing
-- ARGV: 1 entry id after which to look, 2 how many entries to look at, 3 1 to claim those, too, that were
--       left just now
-- Returns: {now_ms, entry id after which to look next or "" at the end, ms of the next one to claim among these or "",
--          then for each that is claimed: entry id, values}.
-- A claimed entry gets another id, so another carrier that has it does not take it for its own any more. After each claim
-- it is left alone for twice as long.
local outgoing, after_entry, most = KEYS[1], ARGV[1], tonumber(ARGV[2])
local LONGEST_MS = 30000
local now = now_ms()
local page = redis.call('XRANGE', outgoing, '(' .. after_entry, '+', 'COUNT', most)
local reply, soonest = {now, #page == most and page[#page][1] or '', ''}, math.huge
if #page > 0 then write_though_full(outgoing) end
for _, entry in ipairs(page) do
  local claims = tonumber(entry[2][22]) or 0
  local at = parts(entry[1]) + math.min(CARRIED_AFTER_MS * 2 ^ claims, LONGEST_MS)
  local is_new = ARGV[3] == '1' and claims == 0
  if not is_new and at > now and at <= now + LONGEST_MS then -- else the clock was set back
    soonest = math.min(soonest, at)
  else
    reply[#reply + 1], reply[#reply + 2] = sent_again(outgoing, entry, {claims = claims + 1})
  end
end
if soonest < math.huge then reply[3] = string.format('%.0f', soonest) end
return reply
