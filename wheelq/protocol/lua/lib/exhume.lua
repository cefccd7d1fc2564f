-- exhume(dead, buried, entry): takes an entry, as XRANGE gives it, from the dead, and what points to it; 1, or 0 if it
-- was not there.
local function exhume(dead, buried, entry)
  local fields = fields_of(entry)
  local member = (fields['id'] or '') .. '\31' .. (fields['group'] or '')
  if redis.call('HGET', buried, member) == entry[1] then redis.call('HDEL', buried, member) end
  return redis.call('XDEL', dead, entry[1])
end
