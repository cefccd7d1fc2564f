-- keep_done(ready, jobs, done, ended, group, consumer, now, kept): keeps what is to be known of jobs this group finished.
-- kept[n] = {entry, id, started_ms, result, record as its producer made it, or "" where the entry has it so}. One packed
-- record per job: its first entry, due, record, and then for each group that finished it: group, started, ended, attempt,
-- consumer, result. Call it before the jobs are forgotten. The first entry names the life of the id: what is kept of an
-- earlier life gives way to the new one's. For a job called back from the dead, or replayed, "0-0" stands there: it goes
-- on with its life.
local function keep_done(ready, jobs, done, ended, group, consumer, now, kept)
  local at = string.format('%.0f', now)
  for _, one in ipairs(kept) do
    local entry, id, started, result, record = unpack(one)
    local found = redis.call('XRANGE', ready, entry, entry)[1]
    if found and #found[2] >= 8 then
      local first = redis.call('HGET', jobs, id)
      if not first or string.byte(first) < 32 then
        -- A run for this group alone, of a job that is not alive any more, was replayed.
        first = #found[2] > 8 and '0-0' or entry
      end
      local value = redis.call('HGET', done, id)
      if record == '' then record = found[2][8] end
      if not value or (first ~= '0-0' and field(value, 1) ~= first) then value = pack(first, found[2][4], record) end
      value = value .. pack(group, started, at, found[2][6], consumer, result)
      redis.call('HSET', done, id, value)
      redis.call('ZADD', ended, at, id)
    end
  end
end
