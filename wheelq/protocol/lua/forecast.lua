-- Count the waiting jobs by how soon they are due.
-- uses: clock, by
-- KEYS: 1 delayed
-- ARGV: the ends of the spans, in ms from now, the nearest first (at most 100)
-- Returns: how many are due by now, then in each span, then later. A span takes O(log n), about 3 us, and nothing once
--          all jobs are counted.
local delayed = KEYS[1]
local now, from, counts, left = now_ms(), '-inf', {}, redis.call('ZCARD', delayed)
for n = 0, #ARGV do
  local due = 0
  if left > 0 then
    local to = string.format('%.1f', by(now + (n == 0 and 0 or tonumber(ARGV[n]))))
    due = redis.call('ZCOUNT', delayed, from, to)
    from, left = '(' .. to, left - due
  end
  counts[#counts + 1] = due
end
counts[#counts + 1] = left
return counts
