-- release: ends a hold, and hands the lock over when that hold was the last. It can also leave the lock taken
-- for a while, by a hold that belongs to nobody.
--
-- Called when a guard is released, in the background when a guard was dropped, and by a forced release. A
-- second call changes nothing, because it finds no such hold.
--
-- Returns `status request now deadline denied incomplete`. The status is NEWER_FORMAT or one of these:
local RELEASED = '1'      -- the last hold is gone, or the lock is kept taken until `deadline`
local ONE_FEWER = '2'     -- the owner has other holds; `deadline` is the latest of theirs
local EXPIRED = '3'       -- not held any more: the lease ran out, and nobody has had the lock since. An only
                          -- hold is released then
local TAKEN = '4'         -- not held any more: the lock has changed hands, or was released already
local ELSEWHERE = '5'     -- nothing done: somebody may be queued, and this is a call for the lock alone
local CLOCK_BEHIND = '6'  -- nothing done: the floor is more than MAX_AHEAD_US ahead of the server's clock
-- `now` is 0 if the script has not read the clock. `denied`: 1 if the ACL refused a push. `incomplete`: 1 if
-- a bound was reached with the lock free: call again.
--
-- Writes the lock when a hold ends; the queue as it hands over.
-- Publishes to the next request in the queue, and a forced release to the holder if that may retain the lock.

-- KEYS[1]  hash: the lock
-- KEYS[2]  sorted set: the queue. A call for the lock alone leaves it out (acquire.lua)
local lock_key, queue_key = KEYS[1], KEYS[2]
-- ARGV[1]  string: the request
-- ARGV[2]  'grant' (the hold of this request under this fence, and nothing else of it: a release that runs
--          late must not free a newer grant), 'keep' (the same, and the lock stays taken for a while) or
--          'force' (all holds under this fence)
-- ARGV[3]  the fence
-- ARGV[4]  string: the start of the clients' channels (lib/hand_over.lua)
-- ARGV[5]  only in a quorum, µs, of 16 digits: the floor, which is the least fence of the next owner and
--          takes the place of the server's time; else '' or nothing
-- ARGV[6]  of 16 digits: the last fence that the hold has used; nothing if that is its own one
-- ARGV[7]  'keep': ms: the lock stays taken for so long at most
-- ARGV[8]  'keep': ms of the server's clock, of 13 digits: and not beyond this time
local request, what, fence, channel_prefix = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local floor_us, last_fence, most_ms, latest = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

-- RETENTION_MS in the width of a lease.
local RETENTION = '0000060000'

local summary = redis.call('HGET', lock_key, 'hold') or ''
-- The fast path: nobody has to be told, nobody else has had the lock since, and the key lives no longer than
-- it may. Neither the time nor the floor matters then. A server without memory refuses a script that begins
-- with this write.
if summary >= NOT_RELEASED and summary < NEWER and what == 'grant'
  and string.sub(summary, HAS_WAITERS) == NO .. ' ' .. ONE .. ' ' .. fence .. ' ' .. request
  and string.sub(summary, LEASE, LEASE_END) <= RETENTION then
  local released = RELEASED_UNTIL .. string.sub(summary, UNTIL_END + 1)
  if last_fence then
    released = RELEASED_UNTIL .. string.sub(summary, UNTIL_END + 1, FENCE - 1) .. last_fence
      .. string.sub(summary, FENCE_END + 1)
  end
  if type(redis.pcall('HSET', lock_key, 'hold', released)) == 'number' then
    return RELEASED .. ' ' .. request .. ' 0 0 0 0'
  end
end
