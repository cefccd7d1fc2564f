-- Tags of calls: a call that is repeated with its tag gets the first answer, and nothing else is done.

-- part: tags
-- Two hashes take turns of `turn_ms`. What is written in one turn expires after the next, so an answer stays for one to
-- two turns.
-- answer_to(tag, even, odd): the stored answer to the call with this tag, if there is one.
-- keep_answer(tag, answer, even, odd, turn_ms, now): stores it. A failure is ignored, because the jobs are written already.
-- forget_answer(tag, even, odd): deletes it.
local function answer_to(tag, even, odd)
  return redis.call('HGET', even, tag) or redis.call('HGET', odd, tag)
end
local function keep_in(key, tag, answer, turn_ms, life_ms)
  redis.pcall('HSET', key, tag, answer)
  local left = redis.pcall('PTTL', key) -- less than a turn: it is new, or the last turn but one ends at this moment
  if type(left) ~= 'number' or left < turn_ms then redis.pcall('PEXPIRE', key, string.format('%.0f', life_ms)) end
end
local function keep_answer(tag, answer, even, odd, turn_ms, now)
  local turn = math.floor(now / turn_ms)
  keep_in(turn % 2 == 0 and even or odd, tag, answer, turn_ms, (turn + 2) * turn_ms - now)
end
local function forget_answer(tag, even, odd)
  redis.pcall('HDEL', even, tag)
  redis.pcall('HDEL', odd, tag)
end

-- part: answers
-- answer_of(us, replies): the answer to store: the server's time in seven bytes. Behind it, unless every job was created
-- as asked (`replies` is nil), for each job one byte with its status, seven with its due time, and eight with the life of
-- the live job that was kept, else zeros.
-- answered(answer, args, first, now): the reply to the repeated call, whose jobs begin at argument `first`.
local NO_LIFE = string.rep('\0', 8)
local function bytes_of(number)
  local bytes = {}
  for n = 7, 1, -1 do
    bytes[n] = number % 256
    number = math.floor(number / 256)
  end
  return string.char(unpack(bytes))
end
local function number_at(bytes, at)
  local number = 0
  for n = at, at + 6 do number = 256 * number + string.byte(bytes, n) end
  return number
end
local function answer_of(us, replies)
  local parts = {bytes_of(tonumber(us))}
  for n = 1, replies and #replies or 0, 2 do
    local due, life = replies[n + 1], NO_LIFE
    if type(due) == 'table' then due, life = due[1], #due[2] == 8 and due[2] or life end
    parts[#parts + 1] = string.char(replies[n]) .. bytes_of(due) .. life
  end
  return table.concat(parts)
end
local function answered(answer, args, first, now)
  local us, replies = number_at(answer, 1), {}
  set_now(us) -- delays count from the first call
  for n, due in ipairs(select(2, wanted(args, first))) do
    local at, status, life = 16 * n - 8, 1, NO_LIFE
    if #answer > 7 then
      status, due, life = string.byte(answer, at), number_at(answer, at + 1), string.sub(answer, at + 8, at + 15)
    end
    replies[2 * n - 1], replies[2 * n] = status, life == NO_LIFE and due or {due, life}
  end
  replies[#replies + 1] = now
  return replies
end
