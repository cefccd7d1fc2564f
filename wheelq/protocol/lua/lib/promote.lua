-- promote_all(delayed, jobs, ready, dead, members, dues): delayed → ready for members known to be due.
-- `dues` are scores. Returns how many were promoted, whether that was all (false when the stream refused one), and how
-- late they were (see lateness). XADD comes before ZREM, and a job whose XADD was refused stays waiting.
-- What waited under a member of its own, beside another life of its id, is finished by its entry alone: `jobs` forgets it.
-- A member without a record (it can only come from outside wheelq) is buried, so that it cannot block the rest.
local function promote_all(delayed, jobs, ready, dead, members, dues)
  local lateness, count_late = late_counter()
  if #members == 0 then return 0, true, lateness end
  local records = redis.call('HMGET', jobs, unpack(members))
  local gone, pointers, alone, promoted, is_all = {}, {}, {}, 0, true
  for n, member in ipairs(members) do
    local due = string.find(dues[n], '.', 1, true) and due_of(dues[n]) or dues[n]
    if records[n] then
      local entry = emit(ready, member, due, records[n])
      if not entry then
        is_all = false
        break
      end
      gone[#gone + 1] = member
      if string.find(member, '\31.*\31') then
        alone[#alone + 1] = member
      else
        pointers[#pointers + 1] = member
        pointers[#pointers + 1] = entry
      end
      promoted = promoted + 1
      count_late(due)
    else
      redis.call('XADD', dead, '*', 'id', member, 'due', due, 'attempt', 0, 'group', '', 'reason', 'no record',
        'error', 'the record of this job is missing', 'record', '')
      gone[#gone + 1] = member
    end
  end
  if #pointers > 0 then redis.call('HSET', jobs, unpack(pointers)) end
  if #alone > 0 then redis.call('HDEL', jobs, unpack(alone)) end
  if #gone > 0 then redis.call('ZREM', delayed, unpack(gone)) end
  return promoted, is_all, lateness
end
