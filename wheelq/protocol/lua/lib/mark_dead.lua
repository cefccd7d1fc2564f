-- mark_dead(buried, progress, news, id, group, grave): a job was buried as entry `grave` of the dead: it can be found
-- there by its id and group, what it said of its progress is forgotten, and who waits for it is told.
local function mark_dead(buried, progress, news, id, group, grave)
  redis.call('HSET', buried, id .. '\31' .. group, grave)
  redis.call('HDEL', progress, id .. '\31' .. group)
  tell_ended(news, {id})
end
