-- spin_acquire: takes the spin lock, or one more hold of it, or tells how long it is held.
--
-- Called by the spin lock's `try_lock`, again and again while it waits.
--
-- Returns `status owner now deadline count`, times in ms of the server's clock:
--   1 held by this owner, `count` times, until `deadline`
--   2 busy: somebody else's until `deadline`
--
-- Writes the hash of the spin lock: owner -> count.

-- KEYS[1]  hash: the spin lock
local spin_key = KEYS[1]
-- ARGV[1]  string: the owner
-- ARGV[2]  ms: the lease
local owner, lease_ms = ARGV[1], tonumber(ARGV[2])

local _, now = server_clock()
if redis.call('EXISTS', spin_key) == 1 and redis.call('HEXISTS', spin_key, owner) == 0 then
  return '2 ' .. owner .. ' ' .. now .. ' ' .. now + redis.call('PTTL', spin_key) .. ' 0'
end
local count = redis.call('HINCRBY', spin_key, owner, 1)
redis.call('PEXPIRE', spin_key, math.max(lease_ms, redis.call('PTTL', spin_key)))
return '1 ' .. owner .. ' ' .. now .. ' ' .. now + lease_ms .. ' ' .. count
