-- Take numeric task ids that are not taken yet: unix seconds x 10000 + counter.
-- uses: clock
-- KEYS: 1 task_ids (the last one taken)
-- ARGV: 1 how many
-- Returns: the first of them, as text; the others follow it.
-- Always above the last one taken, so that they are unique over all processes: after 10,000 in one second, the ids continue
-- with the numbers of the next second. They stay below 2^53 until the year 30,000, so Lua counts them exactly.
local task_ids = KEYS[1]
local count = tonumber(ARGV[1])
local first = math.floor(now_ms() / 1000) * 10000
local last = tonumber(redis.call('GET', task_ids) or 0) or 0
if last >= first and last < 2 ^ 53 then first = last + 1 end
redis.call('SET', task_ids, string.format('%.0f', first + count - 1))
return string.format('%.0f', first)
