-- late_counter(): returns {0}, which becomes {ms late in all, jobs less than 1 ms late, less than 2, less than 4, 8 …},
-- and the function that counts one job in it, due at `due`, which is promoted now.
-- Whole milliseconds, rounded down. Powers of two, because then nobody has to know a list of bounds. Most jobs are as
-- late as the one before, nearly, and need no search for their place.
local function late_counter()
  local told, now, from, to, place = {0}, now_ms(), 0, 0, 2
  return told, function(due)
    local late = now - due
    if late < from or late >= to then
      from, to, place = 0, 1, 2
      while late >= to do from, to, place = to, 2 * to, place + 1 end
      for n = #told + 1, place do told[n] = 0 end
    end
    told[1] = told[1] + late
    told[place] = told[place] + 1
  end
end
