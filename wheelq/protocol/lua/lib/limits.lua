-- Limits per key: permits of promoted jobs, and jobs that are held back because their partition key is at its limit.

-- part: permits
-- In a topic with `key_concurrency`, each promoted entry of a job with a partition key has a permit, as long as a group that
-- it concerns has it unread or pending: a member "key SEPARATOR entry" of the sorted set `permits`, all with score 0, and
-- in the hash `permitted` entry → "group SEPARATOR key", where the group is "" if the entry is for all. So a key's permits
-- are counted, and nothing can drift.
-- limit_keys(ready): the keys `held`, `permits`, `permitted` and `paces` of the shard of this stream, and its `near` channel.
-- They have the hash tag of the stream. Few of the scripts that settle deliveries need them, so no caller names them.
-- between(key): the range of a key's members in `permits` and `held`.
-- next_held(held, key, skipped): who goes next among those of the key that are held back; nil without any.
-- give_back(ready, group, entries, others): gives back the permits of entries that this group has just finished, and hints the
-- leader of their keys, if jobs of them are held back: lines "0 SEPARATOR key". `others` are the other groups, if known.
local function limit_keys(ready)
  local stem = string.sub(ready, 1, -#'ready' - 1)
  return stem .. 'held', stem .. 'permits', stem .. 'permitted', stem .. 'paces', stem .. 'near'
end
local function between(key) return '[' .. key .. '\31', '(' .. key .. ' ' end
local function next_held(held, key, skipped)
  local from, to = between(key)
  return redis.call('ZRANGEBYLEX', held, from, to, 'LIMIT', skipped or 0, 1)[1]
end
local function give_back_in(ready, group, entries, others, held, permits, permitted, _, near)
  if #entries == 0 or redis.call('EXISTS', permitted) == 0 then return end
  local over, members, lines, seen = {}, {}, {}, {}
  others = others or groups_of(ready, group)
  local any_held = redis.call('EXISTS', held) == 1
  for n, stored in ipairs(redis.call('HMGET', permitted, unpack(entries))) do
    local entry, cut = entries[n], stored and string.find(stored, '\31', 1, true)
    local only, key = cut and string.sub(stored, 1, cut - 1), cut and string.sub(stored, cut + 1)
    local is_open = key and only ~= '' and only ~= group -- a retry of another group, which this one only skips
    for _, other in ipairs(only == '' and others or {}) do
      is_open = is_open or is_unfinished(ready, other.name, other.read_to, entry)
    end
    if key and not is_open then
      over[#over + 1], members[#members + 1] = entry, key .. '\31' .. entry
      if any_held and not seen[key] and next_held(held, key) then lines[#lines + 1] = '0 \31' .. key end
      seen[key] = true
    end
  end
  if #over == 0 then return end
  redis.call('HDEL', permitted, unpack(over))
  redis.call('ZREM', permits, unpack(members))
  if #lines > 0 then hint(near, table.concat(lines, '\n')) end
end
local function give_back(ready, group, entries, others) give_back_in(ready, group, entries, others, limit_keys(ready)) end

-- part: held
-- A job that is due while its key is at its limit stays in `delayed`, with HELD added to its score. So nothing that reads what
-- is due meets it, and everything that finds, moves or removes it by its id works as before. The sorted set `held` says who
-- goes next: members "key SEPARATOR rank SEPARATOR member", all with score 0. The score alone says whether a job is
-- held back, so members of `held` may be left over.
-- held_in(delayed): how many are held back. first_of(delayed): the score of the first job that is not, or "".
-- last_of(delayed): the score of the last job that is not, else of one that is, or "0".
local function held_in(delayed) return redis.call('ZCOUNT', delayed, HELD, '(' .. 2 * HELD) end
local function first_of(delayed)
  local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2] or ''
  return first ~= '' and is_held(tonumber(first)) and '' or first
end
local function last_of(delayed)
  local last = redis.call('ZCARD', delayed) - 1
  last = last >= 0 and math.max(last - held_in(delayed), 0)
  return last and redis.call('ZRANGE', delayed, last, last, 'WITHSCORES')[2] or '0'
end

-- part: key_limits
-- limits_of(most, rate): the limits per key: {the most permits of a key, or 0; us between two promotions of a key, or 0; by how
-- many us the second may come too soon}; nil if there are none. No second has more than rate + 1 promotions.
-- limits_in(terms): the same from a topic's terms.
-- key_of(record): the partition key of a job; nil if it has none, or none that any client makes.
local LATE_US = 50000 -- a late promotion of a key does not slow its rate, as long as it is not later than this
local function limits_of(most, rate)
  if most == 0 and not (rate > 0) then return nil end
  local interval = rate > 0 and math.min(math.ceil(1000000 / rate), 2 ^ 53) or 0 -- an infinite one would limit nothing
  return {most, interval, math.min(math.floor(0.9 * (1 - rate % 1) * interval), LATE_US)}
end
local function limits_in(terms)
  local most, rate = string.match(terms, '^%d+ %d+ %a+ %S+ %d+ (%d+) (%S+)$')
  return most and limits_of(tonumber(most), tonumber(rate) or 0)
end
local function key_of(record)
  local key = record and part_of(record, 'k')
  return key and not string.find(key, '\31', 1, true) and key or nil
end

-- part: room
-- room_of(limits, permits, paces): two functions. may_go(key): whether one more job of the key may be promoted; if only its rate
-- forbids it, also the ms when it may. take(key): counts one that is; returns the time (us) for `paces`, with a rate.
local function room_of(limits, permits, paces)
  local most, interval, tolerance = unpack(limits)
  local now, used, paced = tonumber(now_us()), {}, {}
  local function may_go(key)
    if most > 0 then
      used[key] = used[key] or redis.call('ZLEXCOUNT', permits, between(key))
      if used[key] >= most then return false end
    end
    if interval == 0 then return true end
    local from = paced[key] or tonumber(redis.call('ZSCORE', paces, key) or 0)
    -- A time that is further ahead than one promotion leaves it is from a lower rate, or from before the clock was set back.
    if from > now + interval + tolerance then
      from = now + interval + tolerance
      redis.call('ZADD', paces, string.format('%.0f', from), key) -- else each look would put it off
    end
    paced[key] = from
    return from <= now + tolerance, math.ceil((from - tolerance) / 1000)
  end
  local function take(key)
    if most > 0 then used[key] = used[key] + 1 end
    if interval > 0 then paced[key] = math.max(paced[key], now) + interval end
    return paced[key]
  end
  return may_go, take
end

-- part: putting_back
-- rescore(delayed, retries, members, from, to): gives these members other scores; all are numbers.
-- putting_back(delayed, retries, held): two functions. hold(member, score, key, order): a due job is to be held back; those in
-- the order RUN_NEXT go before those IN_ORDER. put_back(): holds them back.
-- was_moved(held, key, member, stands, rank): whether this job, which is due at `stands` now, has a place of that time beside
-- the place of this rank.
-- unhold(delayed, retries, most): up to `most` of those that are held back wait like all others again. Returns whether
-- more may be held back.
local RUN_NEXT, IN_ORDER = '0', '1'
local function rescore(delayed, retries, members, from, to)
  local scores, left, back = {}, {}, {}
  for n, member in ipairs(members) do
    scores[2 * n - 1], scores[2 * n] = to[n], member
    if string.find(member, '\31', 1, true) then left[#left + 1], back[#back + 1] = from[n], to[n] end
  end
  if #scores == 0 then return end
  redis.call('ZADD', delayed, unpack(scores))
  count_retries(retries, left, -1)
  count_retries(retries, back, 1)
end
local function putting_back(delayed, retries, held)
  local members, from, to, ranks, ranked, rank = {}, {}, {}, {}, nil, nil
  local function hold(member, score, key, order)
    local n, stands = #members + 1, math.max(unheld(score), 0)
    members[n], from[n], to[n] = member, stands, stands + HELD
    if stands ~= ranked then ranked, rank = stands, string.format('%016.2f', stands) end
    ranks[2 * n - 1], ranks[2 * n] = '0', key .. '\31' .. order .. rank .. '\31' .. member
  end
  local function put_back()
    if #members == 0 then return end
    redis.call('ZADD', held, unpack(ranks))
    rescore(delayed, retries, members, from, to)
    members, from, to, ranks = {}, {}, {}, {}
  end
  return hold, put_back
end
local function was_moved(held, key, member, stands, rank)
  if math.abs(stands - (tonumber(rank) or 0)) < 1 then return false end
  local place = string.format('%016.2f', stands) .. '\31' .. member
  local function has(order) return redis.call('ZSCORE', held, key .. '\31' .. order .. place) end
  return has(IN_ORDER) or has(RUN_NEXT)
end
local function unhold(delayed, retries, most)
  local found = redis.call('ZRANGEBYSCORE', delayed, HELD, '(' .. 2 * HELD, 'WITHSCORES', 'LIMIT', 0, most)
  local members, from, to = {}, {}, {}
  for n = 1, #found, 2 do
    local score = tonumber(found[n + 1])
    members[#members + 1], from[#from + 1], to[#to + 1] = found[n], score, unheld(score)
  end
  rescore(delayed, retries, members, from, to)
  return #members == most
end
