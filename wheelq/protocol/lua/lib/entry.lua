-- state_of(stored), record_of(stored): the first line of a stored recurring job, and the record its jobs get.
-- The line ends with the record's number of bytes; the record follows it.
local function state_of(stored)
  return string.sub(stored, 1, string.find(stored, '\n', 1, true) - 1)
end
local function record_of(stored)
  local state = state_of(stored)
  local from = #state + 2
  return string.sub(stored, from, from + tonumber(string.match(state, '%d+$')) - 1)
end
