-- sweep_due(delayed, jobs, ready, dead, rate, limit, shape): promotes what is due, earliest first, up to `limit` jobs.
-- `shape` is {interval_us, burst, most unread}, each as text and "0" for none, or empty: then nothing is held back.
-- Returns how late those were that were promoted (see lateness), 1 if more may be due, and, if it is held back, the
-- microseconds until it is worth looking again.
local HELD_US = 20000
local function sweep_due(delayed, jobs, ready, dead, rate, limit, shape)
  local interval_us, burst, most = tonumber(shape[1] or 0), tonumber(shape[2] or 0), tonumber(shape[3] or 0)
  local allowed, wait_us, free, from = limit, 0, nil, nil
  if most > 0 then
    allowed = math.min(allowed, math.max(0, most - unread(ready, most)))
    if allowed < limit then wait_us = HELD_US end
  end
  if interval_us > 0 then
    free, from = tokens(rate, interval_us, burst)
    allowed = math.min(allowed, free)
  end
  local found = redis.call('ZRANGEBYSCORE', delayed, '-inf', by(now_ms()), 'WITHSCORES', 'LIMIT', 0, math.max(allowed, 1))
  local members, dues = {}, {}
  for n = 1, math.min(#found, 2 * allowed), 2 do
    members[#members + 1] = found[n]
    dues[#dues + 1] = found[n + 1]
  end
  local promoted, is_all, lateness = promote_all(delayed, jobs, ready, dead, members, dues)
  local has_more = #found > 0 and #found >= 2 * allowed
  if from and promoted > 0 then spend(rate, interval_us, from, promoted) end
  if from and has_more and allowed == free then
    wait_us = math.max(wait_us, from + (promoted + 1) * interval_us - tonumber(now_us()))
  end
  return lateness, (has_more or not is_all) and 1 or 0, has_more and is_all and allowed < limit and wait_us or nil
end
