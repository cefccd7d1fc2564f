-- now_us(), now_ms(): the server's clock, read once per script.
-- Read once because TIME moves inside a script on servers before 7.2, and one script must have one now.
local time = redis.call('TIME')
local function now_us() return time[1] .. string.format('%06d', time[2]) end
local function now_ms() return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) end
