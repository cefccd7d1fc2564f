-- Hints: to leaders, to workers, and to callers that wait for a job's end.

-- part: hint
-- hint(channel, message): publish a hint. Returns true, unless the server refuses because the user has no right to the
-- channel. A hint may be lost. A refused hint must not end a script that has already written, because its caller would
-- be told that nothing was done.
local function hint(channel, message)
  return type(redis.pcall('PUBLISH', channel, message)) == 'number'
end

-- part: came
-- tell_came(): hint to the workers with many shards, which listen to PREFIX:came, that entries came (see emit).
local function tell_came()
  if #arrived == 0 then return end
  local prefix = string.match(arrived[1], '^(.-):{')
  hint(prefix .. ':came', table.concat(arrived, '\n'))
end

-- part: horizon
-- loaded_to(horizon): due_ms up to which the leader has loaded the waiting jobs; -1 if it is not known.
-- ANY: the hint that there may be a job that the leader does not know of. If the horizon has passed or is missing, either
-- no node leads, or a failover has lost the last horizon while the leader rests: it has to look again.
local ANY = '9007199254740992 -'
local function loaded_to(horizon)
  return tonumber(redis.call('GET', horizon) or -1) or -1
end

-- part: hint_due
-- hint_due(channel, horizon, due, member): sends a hint about a job that is due before the horizon.
local function hint_due(channel, horizon, due, member)
  local last = loaded_to(horizon)
  if due <= last then
    hint(channel, string.format('%.0f %s', due, member))
  elseif last < now_ms() then
    hint(channel, ANY)
  end
end

-- part: tell
-- tell_ended(news, ids): notifies callers that wait for the end of a job of this shard. Writes nothing if none waits.
local function tell_ended(news, ids)
  if redis.call('EXISTS', news) == 1 then redis.call('XADD', news, 'MAXLEN', 20, '*', 'ids', table.concat(ids, '\n')) end
end
