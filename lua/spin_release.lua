-- spin_release: gives one hold of the spin lock back.
--
-- Called by the spin lock's `unlock`.
--
-- Returns `status owner now deadline count`, times in ms of the server's clock:
--   1 given back; held `count` times still, 0: free
--   2 not this owner's (any more)
--
-- Writes the hash of the spin lock: owner -> count.

-- KEYS[1]  hash: the spin lock
local spin_key = KEYS[1]
-- ARGV[1]  string: the owner
local owner = ARGV[1]

local _, now = server_clock()
local count = tonumber(redis.call('HMGET', spin_key, owner)[1] or 0) - 1
if count < 0 then
  return '2 ' .. owner .. ' ' .. now .. ' 0 0'
elseif count == 0 then
  redis.call('DEL', spin_key)
  return '1 ' .. owner .. ' ' .. now .. ' ' .. now .. ' 0'
end
-- An out-of-memory server lets PEXPIRE pass, and then whatever follows.
local ttl_ms = math.max(redis.call('PTTL', spin_key), 1)
redis.call('PEXPIRE', spin_key, ttl_ms .. '')
redis.call('HSET', spin_key, owner, count .. '')
return '1 ' .. owner .. ' ' .. now .. ' ' .. now + ttl_ms .. ' ' .. count
