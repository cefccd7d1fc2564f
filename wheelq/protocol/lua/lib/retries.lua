-- Retries that wait: counting them, and those that an ordered group keeps beside its deliveries.

-- part: retries
-- Counts the jobs that wait for a retry, by when they are due: a field for each span of 2^20 ms, about 17 minutes.
-- count_retries(retries, dues, change): adds `change`, 1 or -1, for each of these due times.
-- waiting_retries(retries, first): how many wait if the first waiting job has the score `first` (nil: no job waits).
-- A retry that is held back is counted under the score that it then has (see held).
-- Because of the spans, the count corrects itself. Another program that does not count may leave a span wrong, but a
-- span that ends before the first waiting job is due cannot hold any retry, and is ignored.
local SPAN_MS = 1048576
local function count_retries(retries, dues, change)
  local changes = {}
  for _, due in ipairs(dues) do
    local span = string.format('%.0f', math.floor(due / SPAN_MS))
    changes[span] = (changes[span] or 0) + change
  end
  for span, by in pairs(changes) do
    local count = tonumber(redis.call('HGET', retries, span) or 0) + by
    if count > 0 then redis.call('HSET', retries, span, count) else redis.call('HDEL', retries, span) end
  end
end
local function waiting_retries(retries, first)
  if not first then return 0 end
  local from, found, cursor = math.floor(first / SPAN_MS), 0, '0'
  repeat
    local page = redis.call('HSCAN', retries, cursor, 'COUNT', 500)
    cursor = page[1]
    for n = 1, #page[2], 2 do
      if tonumber(page[2][n]) >= from then found = found + tonumber(page[2][n + 1]) end
    end
  until cursor == '0'
  return found
end

-- part: put_off
-- order_of(ready, group): the key where an ordered group keeps the next runs of its failed deliveries (see put_off.lua).
-- No caller knows the groups, so it is put together here; its hash tag is that of the shard.
-- put_off(kept): due_ms and record of a next run; nil if there is none.
-- next_run(order, entry): the same of a delivery.
local function order_of(ready, group) return string.gsub(ready, 'ready$', 'order:') .. group end
local function put_off(kept) return string.match(kept or '', '^(%d+) (.*)$') end
local function next_run(order, entry) return put_off(redis.call('HGET', order, entry)) end
