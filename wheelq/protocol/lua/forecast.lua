-- Count the waiting jobs by how soon they are due.
-- uses: clock, by, score, held
-- KEYS: 1 delayed
-- ARGV: the ends of the spans, in ms from now, the nearest first (at most 100)
-- Returns: how many are due by now (those that are held back among them), then in each span, then later. A span takes O(log n), about 3 us, and nothing once
--          all jobs are counted.
local delayed = KEYS[1]
local now, from, counts, held = now_ms(), '-inf', {}, held_in(delayed)
local left = redis.call('ZCARD', delayed) - held
for n = 0, #ARGV do
  local due = 0
  if left > 0 then
    local to = string.format('%.1f', by(now + (n == 0 and 0 or tonumber(ARGV[n]))))
    due = redis.call('ZCOUNT', delayed, from, to)
    from, left = '(' .. to, left - due
  end
  counts[#counts + 1] = n == 0 and due + held or due
end
counts[#counts + 1] = left
return counts
