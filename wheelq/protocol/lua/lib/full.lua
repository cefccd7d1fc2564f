-- write_though_full(key): lets this script write on a server that is out of memory.
-- Such a server refuses a script whose first write needs memory, and lets one go on that has written, even nothing.
-- Only for what must go on then, because it lets jobs finish and so frees memory.
local function write_though_full(key) redis.call('PERSIST', key) end
