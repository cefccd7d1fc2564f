-- kept_due(done, id, record): due_ms of the finished job kept under this id, if it was this very call that made it.
-- Whether any job is kept is asked once.
local keeps
local function kept_due(done, id, record)
  if keeps == nil then keeps = redis.call('EXISTS', done) == 1 end
  local kept = keeps and redis.call('HGET', done, id)
  if not kept then return nil end
  local _, next_field = field(kept, 1)
  local due, its_record
  due, next_field = field(kept, next_field)
  its_record = field(kept, next_field)
  return its_record == record and tonumber(due) or nil
end
