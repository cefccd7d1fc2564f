-- forget_done(done, ended, before, limit): forgets up to `limit` finished jobs that ended before that ms; how many.
local function forget_done(done, ended, before, limit)
  local old = redis.call('ZRANGEBYSCORE', ended, '-inf', before, 'LIMIT', 0, limit)
  if #old == 0 then return 0 end
  redis.call('HDEL', done, unpack(old))
  redis.call('ZREM', ended, unpack(old))
  return #old
end
