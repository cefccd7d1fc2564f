-- Cancel a part of the members of a bundle that wait for their first run.
-- uses: clock, full, life, head_parts, hint, tell, count, outgoing, bundles
-- KEYS: 1 bundles, 2 delayed, 3 jobs, 4 news, 5 counts, 6 outgoing
-- ARGV: 1 bundle, 2 near channel, 3 cursor, "0" at first, 4 about how many fields are looked at
-- Returns: {the next cursor, "0" at the end, how many were cancelled}.
-- Members that are promoted run: nothing of a run is undone.
local bundles, delayed, jobs, news, counts, outgoing = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local bundle, near, cursor, most = unpack(ARGV)
local page = redis.call('HSCAN', bundles, cursor, 'COUNT', most)
local ends, ids = {}, {}
write_though_full(bundles)
for n = 1, #page[2], 2 do
  local life, id = string.match(page[2][n], '^\31(.*)$'), nil
  if life and string.match(page[2][n + 1], '^l%d+\31([^\31]*)') == bundle then
    id = string.match(page[2][n + 1], '\31([^\31]*)$')
  end
  local stored = id and redis.call('HGET', jobs, id)
  if stored and life_of(stored) == life and redis.call('ZREM', delayed, id) == 1 then
    redis.call('HDEL', jobs, id)
    ids[#ids + 1], ends[#ends + 1] = id, {life, 'cancelled'}
  end
end
if #ids > 0 then
  tell_ended(news, ids)
  count(counts, 'cancelled\31', #ids)
  count_ends(bundles, outgoing, near, ends)
end
return {page[1], #ids}
