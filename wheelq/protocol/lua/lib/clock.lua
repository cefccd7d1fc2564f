-- now_us(), now_ms(): the server's clock, read once per script.
-- Read once because TIME moves inside a script on servers before 7.2, and one script must have one now.
-- due_ms(text): "+ms" is so long after now, and "ms" is since the epoch; then comes "h" for high and "l" for low priority,
-- told as the fraction of a score. A delay counts from the end of the millisecond that has begun, because a due time
-- before the delay is over would be early; no delay at all means now.
local time = redis.call('TIME')
local function now_us() return time[1] .. string.format('%06d', time[2]) end
local function now_ms() return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) end
local FRACTIONS = {h = -0.25, l = 0.25}
local function due_ms(text)
  local ms, fraction = tonumber(text), 0
  if not ms then
    ms, fraction = tonumber(string.sub(text, 1, -2)), FRACTIONS[string.sub(text, -1)]
  end
  if string.byte(text) ~= 43 then return ms, fraction end
  if ms == 0 then return now_ms(), fraction end
  return tonumber(time[1]) * 1000 + math.ceil(tonumber(time[2]) / 1000) + ms, fraction
end
