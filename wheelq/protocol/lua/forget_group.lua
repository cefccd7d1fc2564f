-- Forget a part of what is kept of a group that is being removed: the progress that its handlers reported, and the jobs
-- that it finished.
-- uses: full, field, without
-- KEYS: 1 progress, 2 done, 3 ended, 4 groups
-- ARGV: 1 group, 2 cursor in `progress`, 3 cursor in `done`; "" where there is nothing left to look at,
--       4 about how many of each are looked at
-- Returns: {cursor, cursor}, as in 2 and 3.
local progress, done, ended, groups = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local group, at_progress, at_done, count = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local state = redis.call('HGET', groups, group)
if not state or state == '' then return {'', ''} end

write_though_full(done)
if at_progress ~= '' then
  local page = redis.call('HSCAN', progress, at_progress, 'COUNT', count)
  for n = 1, #page[2], 2 do
    if string.match(page[2][n], '\31(.*)$') == group then redis.call('HDEL', progress, page[2][n]) end
  end
  at_progress = page[1] ~= '0' and page[1] or ''
end
if at_done ~= '' then
  local page = redis.call('HSCAN', done, at_done, 'COUNT', count)
  for n = 1, #page[2], 2 do
    local id, packed = page[2][n], page[2][n + 1]
    local rest, others = without(packed, group)
    if rest and rest ~= packed and others == 0 then
      redis.call('HDEL', done, id)
      redis.call('ZREM', ended, id)
    elseif rest and rest ~= packed then
      redis.call('HSET', done, id, rest)
    end
  end
  at_done = page[1] ~= '0' and page[1] or ''
end
return {at_progress, at_done}
