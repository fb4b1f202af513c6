-- renew: prolongs a hold. It never brings back a hold that is gone.
--
-- Called in the background for each hold, when a third of its time is used up. The first renewal of a pushed
-- grant is its claim. It declares the lock alone, so that the migration of a cluster's slot never stops a
-- renewal.
--
-- Returns `status request now deadline`. The status is NEWER_FORMAT or one of these:
local HELD = '1'     -- until `deadline`
local EXPIRED = '2'  -- not held any more: the lease ran out, and nobody has had the lock since
local TAKEN = '3'    -- not held any more: the lock has changed hands, or was released

-- Writes the lock.

-- KEYS[1]  hash: the lock
local lock_key = KEYS[1]
-- ARGV[1]  string: the request
-- ARGV[2]  the fence
-- ARGV[3]  ms, of 10 digits: the lease
-- ARGV[4]  ms of the server's clock: the deadline is never later
local request, fence, lease_ms, cap_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local summary = redis.call('HGET', lock_key, 'hold') or ''
if summary >= NEWER then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
local more_words = ''
