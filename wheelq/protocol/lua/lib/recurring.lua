-- Recurring jobs as they are stored.

-- part: entry
-- state_of(stored), record_of(stored): the first line of a stored recurring job, and the record that its jobs get.
-- The line ends with the record's number of bytes; the record follows. A value of another program may have neither.
local function state_of(stored)
  return string.match(stored, '^[^\n]*')
end
local function record_of(stored)
  local state = state_of(stored)
  local from = #state + 2
  return string.sub(stored, from, from + (tonumber(string.match(state, '%d+$') or 0)) - 1)
end
