-- tell_ended(news, ids): lets those who wait for the end of a job of this shard know. Nobody waits: nothing is written.
local function tell_ended(news, ids)
  if redis.call('EXISTS', news) == 1 then redis.call('XADD', news, 'MAXLEN', 20, '*', 'ids', table.concat(ids, '\n')) end
end
