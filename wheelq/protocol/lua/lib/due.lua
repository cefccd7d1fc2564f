-- Due times: as the scores of members, and how late jobs are promoted.

-- part: score
-- A member's score is its due_ms, minus a quarter for high priority, plus a quarter for low. So members are in the order
-- of due times, and within one millisecond in the order of priority; rounding gives the due time back. A double holds
-- such scores exactly.
-- score_of(due, fraction): the score to store. due_of(score): the due time as a number; nil without a score. Another program may
-- have stored any score, even infinity: due times are limited to 0 to 2^53.
-- HELD is added to the score of a job that is held back because its key is at its limit (see held). is_held(score): whether it is
-- there. unheld(score): without it.
local LAST_MS, HELD = 9007199254740992, 35184372088832 -- 2^53; 2^45: due times are lower
local function is_held(score) return score >= HELD and score < 2 * HELD end
local function unheld(score) return is_held(score) and score - HELD or score end
local function score_of(due, fraction)
  return fraction == 0 and due or string.format('%.2f', due + fraction)
end
local function due_of(score)
  return score and math.max(0, math.min(math.floor(unheld(tonumber(score)) + 0.5), LAST_MS))
end

-- part: by
-- by(now): the highest score that is due by then.
local function by(now)
  return now + 0.4
end

-- part: lateness
-- late_counter(): returns {0}, which becomes {ms late in all, jobs less than 1 ms late, less than 2, less than 4, 8 …},
-- and the function that counts one job in it, due at `due`, which is promoted now.
-- Whole milliseconds, rounded down. The bounds are powers of two, so that readers need no list of them. Most jobs are
-- about as late as the one before, and fall into the same place without a search.
local function late_counter()
  local counted, now, from, to, place = {0}, now_ms(), 0, 0, 2
  return counted, function(due)
    local late = now - due
    if late < from or late >= to then
      from, to, place = 0, 1, 2
      while late >= to do from, to, place = to, 2 * to, place + 1 end
      for n = #counted + 1, place do counted[n] = 0 end
    end
    counted[1] = counted[1] + late
    counted[place] = counted[place] + 1
  end
end
