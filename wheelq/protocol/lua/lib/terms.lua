-- by_terms(delayed, terms): how many more jobs may wait here, and whether new ones that are due go to the stream at once.
-- The terms of a topic without limits are its number of shards alone, and cost no look.
local function by_terms(delayed, terms)
  local most, state = string.match(terms, ' (%d+) (%a+)')
  if not most then return math.huge, true end
  return most == '0' and math.huge or tonumber(most) - redis.call('ZCARD', delayed), state == 'free'
end
