-- spin_release: gives one hold of the spin lock back.
--
-- Called by the spin lock's `unlock`.
--
-- Returns `status owner now deadline count`. The status is one of these:
local RELEASED = '1'  -- `count` holds are left, and with 0 the lock is free
local NOT_HELD = '2'  -- by this owner (any more)

-- Writes the hash of the spin lock: the owner's count. The request stays, so a call of that request that runs
-- late does not count again either.

-- KEYS[1]  hash: the spin lock
local spin_key = KEYS[1]
-- ARGV[1]  string: the owner
local owner = ARGV[1]

local count = tonumber(redis.call('HGET', spin_key, owner) or 0) - 1
if count < 0 then
  return NOT_HELD .. ' ' .. owner .. ' ' .. now .. ' 0 0'
elseif count == 0 then
  redis.call('DEL', spin_key)
  return RELEASED .. ' ' .. owner .. ' ' .. now .. ' ' .. now .. ' 0'
end
-- HDEL finds nothing; but an out-of-memory server lets it pass, and then whatever follows.
redis.call('HDEL', spin_key, '')
redis.call('HSET', spin_key, owner, count .. '')
return RELEASED .. ' ' .. owner .. ' ' .. now .. ' ' .. now + redis.call('PTTL', spin_key) .. ' ' .. count
