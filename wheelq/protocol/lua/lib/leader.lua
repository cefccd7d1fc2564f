-- leads(lease, token, lease_ms): whether the caller holds the shard's lease; if so, the lease is prolonged.
-- Everything a leader may do is behind this check in the same script, so a leader that was frozen past its lease and
-- wakes up can change nothing. The PEXPIRE is also the script's first write, which matters: a server that is out of
-- memory refuses a script's first write if it needs memory, but lets it go on once it has written. So what is due is
-- still promoted on a full server, which is what frees it.
local function leads(lease, token, lease_ms)
  if redis.call('GET', lease) ~= token then return false end
  redis.call('PEXPIRE', lease, lease_ms)
  return true
end
