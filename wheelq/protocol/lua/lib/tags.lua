-- Tags of calls: a call that is repeated with its tag gets the first answer, and nothing else is done.

-- part: tags
-- Two hashes take turns of `turn_ms`. What is written in one turn expires after the next, so an answer stays for one to
-- two turns. An answer is stored as the server's time in seven bytes. Behind it, unless every job was created as asked, for
-- each job one byte with its status, seven with its due time, and eight with the life of the live job that was kept, else
-- zeros.
-- Every call makes these functions anew, so those that few calls need are inside the ones that need them.
-- answer_to(tag, even, odd): the stored answer to the call with this tag, if there is one.
-- keep_answer(tag, replies, even, odd, turn_ms): stores it; `replies` is false if every job was created as asked. A failure
-- is ignored, because the jobs are written already.
-- answered(answer, args, first, now): the reply to the repeated call, whose jobs begin at argument `first`.
local function answer_to(tag, even, odd)
  return redis.call('HGET', even, tag) or redis.call('HGET', odd, tag)
end
local function keep_answer(tag, replies, even, odd, turn_ms)
  local function bytes_of(number)
    local bytes = {}
    for n = 7, 1, -1 do
      bytes[n] = number % 256
      number = math.floor(number / 256)
    end
    return string.char(unpack(bytes))
  end
  local answer = {bytes_of(tonumber(now_us()))}
  for n = 1, replies and #replies or 0, 2 do
    local due, life = replies[n + 1], ''
    if type(due) == 'table' then due, life = due[1], due[2] end
    answer[#answer + 1] = string.char(replies[n]) .. bytes_of(due) .. (#life == 8 and life or string.rep('\0', 8))
  end
  local now = now_ms()
  local turn = math.floor(now / turn_ms)
  local function keep_in(key)
    local left = redis.pcall('PTTL', key)
    local is_in_use = type(left) == 'number' and left >= turn_ms
    local is_too_long = is_in_use and left > 2 * turn_ms -- the clock was set back
    if not is_in_use then redis.pcall('PEXPIRE', key, 0) end -- a hash can be seen in the millisecond in which it ends
    redis.pcall('HSET', key, tag, table.concat(answer))
    if not is_in_use or is_too_long then redis.pcall('PEXPIRE', key, string.format('%.0f', (turn + 2) * turn_ms - now)) end
  end
  keep_in(turn % 2 == 0 and even or odd)
end
local function answered(answer, args, first, now)
  local function number_at(at)
    local number = 0
    for n = at, at + 6 do number = 256 * number + string.byte(answer, n) end
    return number
  end
  local us, replies, seconds, micros = number_at(1), {}, time[1], time[2]
  time[1], time[2] = math.floor(us / 1000000), us % 1000000 -- delays count from the first call
  for n, due in ipairs(select(2, wanted(args, first))) do
    local at, status, life = 16 * n - 8, 1, nil
    if #answer > 7 then
      status, due, life = string.byte(answer, at), number_at(at + 1), string.sub(answer, at + 8, at + 15)
      if life == string.rep('\0', 8) then life = nil end
    end
    replies[2 * n - 1], replies[2 * n] = status, life and {due, life} or due
  end
  time[1], time[2] = seconds, micros -- for those of the call that follow
  replies[#replies + 1] = now
  return replies
end
