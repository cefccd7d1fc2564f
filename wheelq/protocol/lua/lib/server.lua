-- The server: its clock, its lists of fields, whether it is the primary, and writing when it is out of memory.

-- part: clock
-- now_us(), now_ms(): the server's clock, read once per script.
-- Read once because TIME moves inside a script on servers before 7.2, and one script must have one now.
-- due_ms(text): "+ms" after now, or "ms" since the epoch; "h" after it means high priority, "l" low. Returns the due time
-- and the fraction to add to its score. A delay counts from the end of the current millisecond, because the job would be
-- early otherwise; no delay at all means now. Raises an error unless the number is from 0 to 2^53.
local time = redis.call('TIME')
local function now_us() return time[1] .. string.format('%06d', time[2]) end
local function now_ms() return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) end
local FRACTIONS = {h = -0.25, l = 0.25}
local function due_ms(text)
  local ms, fraction = tonumber(text), 0
  if not ms then
    ms, fraction = tonumber(string.sub(text, 1, -2)), FRACTIONS[string.sub(text, -1)]
  end
  -- Lua takes "inf", "nan" and "1.5" for numbers, too.
  if not ms or not (ms >= 0 and ms <= 9007199254740992) then error('no due time: ' .. string.sub(text, 1, 40)) end
  ms = math.ceil(ms)
  if string.byte(text) ~= 43 then return ms, fraction end
  if ms == 0 then return now_ms(), fraction end
  return tonumber(time[1]) * 1000 + math.ceil(tonumber(time[2]) / 1000) + ms, fraction
end

-- part: fields
-- fields_of(list): the fields of a list {name, value, …}, as XINFO and stream entries have them, by name. The scripts that
-- run for every job (ack, promote, read) have this loop in place, which costs less than a function.
local function fields_of(list)
  local fields = {}
  for n = 1, #list, 2 do fields[list[n]] = list[n + 1] end
  return fields
end

-- part: full
-- write_though_full(key): lets this script write on a server that is out of memory.
-- Such a server refuses a script whose first write needs memory, but lets a script go on that has written something, even
-- nothing. Use it only in scripts that let jobs finish, and so free memory.
local function write_though_full(key) redis.call('PERSIST', key) end

-- part: primary
-- only_on_primary(key): raises the server's error unless it takes writes. Use it before an answer for which nothing was
-- written: a replica answers from data that may be old, and after a failover a caller may still be connected to one.
local function only_on_primary(key) redis.call('PERSIST', key) end
