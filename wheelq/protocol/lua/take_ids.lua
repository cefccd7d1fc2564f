-- Take numeric task ids that nobody has taken: unix seconds x 10000 + counter.
-- uses: clock
-- KEYS: 1 task_ids (the last one taken)
-- ARGV: 1 how many
-- Returns: the first of them, as text; the others follow it.
-- Always above the last one, so that they are unique over all processes: a second with more than 10,000 goes on in the
-- numbers of the next, and the clock catches up. Below 2^53 (until the year 30,000), so Lua counts them exactly.
local task_ids = KEYS[1]
local count = tonumber(ARGV[1])
local first = math.floor(now_ms() / 1000) * 10000
local last = tonumber(redis.call('GET', task_ids) or 0)
if last >= first then first = last + 1 end
redis.call('SET', task_ids, string.format('%.0f', first + count - 1))
return string.format('%.0f', first)
