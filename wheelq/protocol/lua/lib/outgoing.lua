-- Followers: jobs that a settled delivery leaves in the stream `outgoing`, on their way to another shard.

-- part: outgoing
-- An entry has the values of FIELDS, in this order: topic, id, due (as `wanted` takes it), partition key or "", what to do
-- with a live job of that id, record; tag of the call that takes it there; shard and terms by which it was placed ("" as
-- shard: not yet), and since when (ms); how often it was claimed; how often its target has refused it.
-- room_in(outgoing): how many more followers it may hold.
-- send_on(outgoing, args, at): adds the follower whose arguments (the first nine of FIELDS) begin at `at`. Its delay
-- counts from now. Returns the entry and its due time, with a space between.
-- hint_outgoing(near, size): a hint to leaders if `outgoing` was empty before: they carry it a second from now, if
-- nobody has by then. Other leaders take the name for that of a job, and find none.
local FIELDS = {'topic', 'id', 'due', 'key', 'how', 'record', 'tag', 'shard', 'terms', 'placed', 'claims', 'refusals'}
local MOST_OUTGOING, CARRIED_AFTER_MS, ASKED = 10000, 1000, 9
local function room_in(outgoing) return MOST_OUTGOING - redis.call('XLEN', outgoing) end
local function put_outgoing(outgoing, values)
  local args = {}
  for n, name in ipairs(FIELDS) do args[2 * n - 1], args[2 * n] = name, values[n] end
  return redis.call('XADD', outgoing, '*', unpack(args))
end
local function send_on(outgoing, args, at)
  local values = {unpack(args, at, at + ASKED - 1)}
  local due, fraction = due_ms(values[3])
  values[3] = string.format('%.0f%s', due, fraction == 0 and '' or fraction < 0 and 'h' or 'l')
  values[10], values[11], values[12] = values[8] ~= '' and string.format('%.0f', now_ms()) or '', 0, 0
  return put_outgoing(outgoing, values) .. ' ' .. values[3]
end
local function hint_outgoing(near, size)
  if size == 0 then hint(near, string.format('%.0f \31outgoing', now_ms() + CARRIED_AFTER_MS)) end
end

-- part: any_outgoing
-- any_outgoing(outgoing): 1 if followers are outgoing, else 0, also if another program has the key.
local function any_outgoing(outgoing)
  local left = redis.pcall('XLEN', outgoing)
  return type(left) == 'number' and left > 0 and 1 or 0
end

-- part: followers
-- send_all_on(outgoing, near, args, first): what settled deliveries leave. From argument `first` on there are ten for each
-- follower: the number of its delivery, then as for `send_on`.
-- wants(args, first): how many followers each delivery has, by its number.
-- `states[n]` says what became of delivery n: true, it is settled, and its followers are added; else what to answer for each.
-- Returns what `send_on` does for each, or these answers.
local function wants(args, first)
  local wanted = {}
  for n = first, #args, ASKED + 1 do
    local delivery = tonumber(args[n])
    wanted[delivery] = (wanted[delivery] or 0) + 1
  end
  return wanted
end
local function send_all_on(outgoing, near, args, first, states)
  local found, size, is_any = {}, redis.call('XLEN', outgoing), false
  for n = first, #args, ASKED + 1 do
    local state = states[tonumber(args[n])]
    found[#found + 1] = state == true and send_on(outgoing, args, n + 1) or state
    is_any = is_any or state == true
  end
  if is_any then hint_outgoing(near, size) end
  return found
end

-- part: sent_again
-- sent_again(outgoing, entry, changes): gives an entry, as XRANGE returns it, another id and other values, so that a
-- carrier that has it under the former id notices. Returns the new id.
local function sent_again(outgoing, entry, changes)
  local values = {}
  for n = 1, #FIELDS do values[n] = changes[FIELDS[n]] or entry[2][2 * n] end
  redis.call('XDEL', outgoing, entry[1])
  return put_outgoing(outgoing, values), values
end
