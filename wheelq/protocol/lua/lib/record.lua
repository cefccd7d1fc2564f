-- Records of jobs: the head, whose bytes protocol/codec.py lists. The body is never opened here.

-- part: head
-- is_record(text): whether it has the head of a record. stamped(record, stamp): the record with those first bytes (see
-- stamp). lived(record, life): the record with that life.
local function is_record(text)
  return #text > 17 and string.byte(text) == 2
end
local function stamped(record, stamp)
  return stamp .. string.sub(record, 8)
end
local function lived(record, life)
  return string.sub(record, 1, 9) .. life .. string.sub(record, 18)
end

-- part: stamp
-- stamp_of(now): the first bytes of a record that is stored at that time (ms).
local function stamp_of(now)
  local floor, high, low = math.floor, math.floor(now / 16777216), now % 16777216
  return string.char(2, floor(high / 65536), floor(high / 256) % 256, high % 256, floor(low / 65536), floor(low / 256) % 256,
    low % 256)
end

-- part: life
-- life_of(record): the life that its head says; "" if another program wrote less than a head.
-- is_same(record, other): whether both are of one call, whenever it was made.
local function life_of(record)
  return string.sub(record, 10, 17)
end
local function is_same(record, other)
  return string.sub(record, 8) == string.sub(other, 8)
end

-- part: head_parts
-- part_of(record, name): the part of its head with this one-byte name, as it is stored; nil if there is none, or if it is
-- not whole. Numbers are big-endian (number_of). Runs for every job of some topics, so it makes no strings on its way.
local function number_of(bytes)
  local number = 0
  for n = 1, #bytes do number = 256 * number + string.byte(bytes, n) end
  return number
end
local function part_of(record, name)
  if #record < 20 or string.byte(record, 9) % 2 == 0 then return nil end
  local high, low = string.byte(record, 18, 19)
  local at, last, wanted = 20, math.min(19 + 256 * high + low, #record), string.byte(name)
  while at + 2 <= last do
    local found, upper, lower = string.byte(record, at, at + 2)
    local to = at + 2 + 256 * upper + lower
    if to > last then return nil end
    if found == wanted then return string.sub(record, at + 3, to) end
    at = to + 1
  end
end
