-- Have the ends of this shard's jobs written to `news` for a while, because a caller waits for one.
-- KEYS: 1 news
-- ARGV: 1 for how many ms
-- Returns: the id of the latest entry; later ends come after it.
-- One step, so that every job that ends from now on is written after that id.
local news = KEYS[1]
local last = redis.call('XREVRANGE', news, '+', '-', 'COUNT', 1)[1]
local id = last and last[1] or redis.call('XADD', news, '*', 'ids', '')
redis.call('PEXPIRE', news, ARGV[1])
return id
