-- A member's score is its due_ms, less a quarter for a job of high priority and more by a quarter for one of low. So
-- members are in the order of due times, and those of one millisecond in that of priority; rounding gives the due time
-- back. A double holds all of it exactly.
-- by(now): the highest score of what is due by then. score_of(due, fraction): what to store. due_of(score): the due time,
-- as a number; nil of no score.
local function by(now)
  return now + 0.4
end
local function score_of(due, fraction)
  return fraction == 0 and due or string.format('%.2f', due + fraction)
end
local function due_of(score)
  return score and math.floor(tonumber(score) + 0.5)
end
