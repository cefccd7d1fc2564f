-- Let the ends of this shard's jobs be told for a while, because somebody waits for one.
-- KEYS: 1 news
-- ARGV: 1 ms for which they are to be told
-- Returns: the id of the latest news; what comes after it is yet to happen.
-- One step, so that what ends from now on is told, and found behind that id.
local news = KEYS[1]
local last = redis.call('XREVRANGE', news, '+', '-', 'COUNT', 1)[1]
local id = last and last[1] or redis.call('XADD', news, '*', 'ids', '')
redis.call('PEXPIRE', news, ARGV[1])
return id
