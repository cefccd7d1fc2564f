-- Count the waiting jobs by how soon they are due.
-- uses: clock, score
-- KEYS: 1 delayed
-- ARGV: the ends of the spans, in ms from now, the nearest first (at most 100)
-- Returns: how many are due by now, then in each span, then later. Each takes O(log n).
local delayed = KEYS[1]
local now, from, counts = now_ms(), '-inf', {}
for n = 0, #ARGV do
  local to = now + (n == 0 and 0 or tonumber(ARGV[n]))
  counts[#counts + 1] = redis.call('ZCOUNT', delayed, from, string.format('%.1f', by(to)))
  from = string.format('(%.1f', by(to))
end
counts[#counts + 1] = redis.call('ZCOUNT', delayed, from, '+inf')
return counts
