-- Deliveries: which consumer owns one.

-- part: owned
-- owns(ready, group, consumer, entry, lease, id): whether the delivery is pending and this consumer's; with the number of a
-- lease, also whether it is that lease (see is_leased); with an id, also whether the entry is of that job: a server that
-- has lost its last writes, and whose clock was set back, gives the ids of their entries again. An entry that is no job goes
-- by the id 'entry ENTRY' (see `read_entry`).
-- XACK and XCLAIM do not check the owner: without this, a frozen worker that wakes up would acknowledge a delivery that
-- another worker has taken over.
local function owns(ready, group, consumer, entry, lease, id)
  local pending = redis.call('XPENDING', ready, group, entry, entry, 1)[1]
  if not pending or pending[2] ~= consumer or (lease and pending[4] ~= tonumber(lease)) then return false end
  local found = id and redis.call('XRANGE', ready, entry, entry)[1]
  return not found or found[2][2] == id or id == 'entry ' .. entry
end

-- part: leased
-- is_leased(ready, group, consumer, entry, number): whether the delivery is under the lease of this number. Each lease of
-- an entry has its own number, the count of deliveries, so that an old handle cannot answer for a later lease.
local function is_leased(ready, group, consumer, entry, number)
  local pending = redis.call('XPENDING', ready, group, entry, entry, 1)[1]
  return pending ~= nil and pending[2] == consumer and pending[4] == tonumber(number)
end

-- part: handed
-- record_named(ready, entry, member): the record in this entry, '' if it has none or is gone; nil if its job has another
-- member: a handle comes back from its caller, who may have altered it.
local function record_named(ready, entry, member)
  local found = redis.call('XRANGE', ready, entry, entry)[1]
  if not found then return '' end
  local fields = found[2]
  return member == fields[2] .. (fields[10] and '\31' .. fields[10] or '') and (fields[8] or '') or nil
end

-- part: ack
-- ack_all(ready, jobs, counts, group, consumer, safe_until, retention_ms, dropped, args, from, to): acknowledges the
-- deliveries args[from] to args[to], each an entry id and a member, forgets the finished jobs, and trims the stream. The
-- last `dropped` of them never ran. Returns how many were acknowledged. Until the ms `safe_until` no other worker can own
-- them, so their owners are not looked up.
local function ack_all(ready, jobs, counts, group, consumer, safe_until, retention_ms, dropped, args, from, to)
  local now = now_ms()
  local is_safe = now <= tonumber(safe_until)
  local entries, members, held, expired, others = {}, {}, 0, 0, 0
  local dropped_from = to + 1 - 2 * dropped
  for n = from, to, 2 do
    local entry, member = args[n], args[n + 1]
    if is_safe or owns(ready, group, consumer, entry, nil, string.match(member, '^[^\31]*')) then
      held = held + 1
      entries[held], members[held] = entry, member
      if not concerns(member, group) then
        others = others + 1
      elseif n >= dropped_from then
        expired = expired + 1
      end
    end
  end
  if held == 0 then return 0 end
  local acked = redis.call('XACK', ready, group, unpack(entries))
  if acked == 0 then return 0 end
  local _, infos, other_groups = finish(ready, jobs, group, entries, members)
  give_back(ready, group, entries, other_groups)
  trim(ready, tonumber(retention_ms), now, counts, infos)
  count(counts, 'done\31' .. group, acked - expired - others)
  count(counts, 'expired\31' .. group, expired)
  return acked
end
