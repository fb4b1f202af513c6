-- spin_acquire: takes the spin lock, or one more hold of it, or says that it is busy.
--
-- Called by the spin lock's `try_lock`, again and again while it waits, and again after an unknown outcome.
-- All these calls have one request, and only the first that succeeds counts.
--
-- Returns `status owner now deadline count`. The status is one of these:
local HELD = '1'  -- by this owner, `count` times, until `deadline`
local BUSY = '2'  -- somebody else holds it; `deadline` and `count` are 0

-- Writes the hash of the spin lock: owner -> count, and 'request', by which the last hold was taken.

-- KEYS[1]  hash: the spin lock
local spin_key = KEYS[1]
-- ARGV[1]  string: the owner
-- ARGV[2]  ms: the lease
-- ARGV[3]  string: the request
local owner, lease_ms, request = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local held, last = redis.call('HGET', spin_key, owner), redis.call('HGET', spin_key, 'request')
if last and not held then
  return BUSY .. ' ' .. owner .. ' ' .. now .. ' 0 0'
end
local count = held or '0'
if last ~= request then
  count = count + 1 .. ''
  redis.call('HSET', spin_key, owner, count, 'request', request)
end
redis.call('PEXPIRE', spin_key, math.max(lease_ms, redis.call('PTTL', spin_key)))
return HELD .. ' ' .. owner .. ' ' .. now .. ' ' .. now + lease_ms .. ' ' .. count
