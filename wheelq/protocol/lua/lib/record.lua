-- Records of jobs: the head, whose bytes protocol/codec.py lists. The body is never opened here.

-- part: head
-- is_record(text): whether it has the head of a record.
-- stamp_of(now): the first bytes of a record that is stored at that time (ms). stamped(record, stamp): the record with
-- them. lived(record, life): the record with that life.
-- attempt_of(record), life_of(record): what its head says; 0 and "" if another program wrote less than a head.
-- is_same(record, other): whether both are of one call, whenever it was made.
local function is_record(text)
  return #text > 17 and string.byte(text) == 2
end
local function stamp_of(now)
  local bytes = {}
  for n = 6, 1, -1 do
    bytes[n] = now % 256
    now = math.floor(now / 256)
  end
  return '\2' .. string.char(unpack(bytes))
end
local function stamped(record, stamp)
  return stamp .. string.sub(record, 8)
end
local function lived(record, life)
  return string.sub(record, 1, 9) .. life .. string.sub(record, 18)
end
local function attempt_of(record)
  return string.byte(record, 8) or 0
end
local function life_of(record)
  return string.sub(record, 10, 17)
end
local function is_same(record, other)
  return string.sub(record, 8) == string.sub(other, 8)
end

-- part: head_parts
-- head_of(record): its parts by their one-byte names, as they are stored; numbers are big-endian (number_of). Parts of
-- later releases are there, too. What is not whole is left out.
local function number_of(bytes)
  local number = 0
  for n = 1, #bytes do number = 256 * number + string.byte(bytes, n) end
  return number
end
local function head_of(record)
  local parts, at = {}, 20
  if string.byte(record, 9) % 2 == 0 then return parts end
  local last = 19 + number_of(string.sub(record, 18, 19))
  while at + 2 <= last do
    local to = at + 2 + number_of(string.sub(record, at + 1, at + 2))
    if to > math.min(last, #record) then break end
    parts[string.sub(record, at, at)] = string.sub(record, at + 3, to)
    at = to + 1
  end
  return parts
end
