-- release: ends a hold, and hands the lock over when that hold was the last. It can also leave the lock taken
-- for a while, by a hold that belongs to nobody.
--
-- Called when a guard is released, in the background when a guard was dropped, and by a forced release. A
-- second call changes nothing, because it finds no such hold.
--
-- Returns `status request now deadline denied incomplete`. The status is NEWER_FORMAT or one of these:
local RELEASED = '1'      -- the last hold is gone, or the lock is kept taken until `deadline`
local ONE_FEWER = '2'     -- the owner has other holds; `deadline` is the latest of theirs
local EXPIRED = '3'       -- not held any more: the lease ran out, and nobody has had the lock since
local TAKEN = '4'         -- not held any more: the lock has changed hands, or was released already
local ELSEWHERE = '5'     -- nothing done: somebody may be queued, and this is a call for the lock alone
local CLOCK_BEHIND = '6'  -- nothing done: the floor is more than MAX_AHEAD_US ahead of the server's clock
-- `denied`: 1 if the ACL refused a push. `incomplete`: 1 if a bound was reached with the lock free: call
-- again.
--
-- Writes the lock when a hold ends; the queue as it hands over.
-- Publishes to the next request in the queue.

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

local summary = redis.call('HGET', lock_key, 'hold') or ''
if summary >= NEWER then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end

if floor_us == '' then
  floor_us = nil
elseif floor_us and floor_us - now_us > MAX_AHEAD_US then
  return CLOCK_BEHIND .. ' ' .. request .. ' ' .. now .. ' 0 0 0'
end
local was_until, stays_until = string.sub(summary, UNTIL, UNTIL_END), nil
if what == 'keep' then
  what = 'grant'
  -- If the time of 'keep' is over, or there is no such hold, it is a release like any other.
  local deadline = string.format('%d', math.min(now + most_ms, latest))
  if was_until > now and deadline > now then
    -- No call names the request that keeps the lock taken, and it has no owner.
    local kept = string.sub(request, CLIENT, CLAIM_MS_END) .. KEPT .. string.match(request, '%d+:', NUMBER)
    local hold = string.sub(summary, HOLDS)
    if hold == ONE .. ' ' .. fence .. ' ' .. kept then
      -- The call before this one may have been incomplete.
      stays_until = was_until
    elseif hold == ONE .. ' ' .. fence .. ' ' .. request then
      local lease_ms = string.format('%010d', deadline - now)
      -- PEXPIRE comes first: an out-of-memory server lets it pass, and then whatever follows.
      redis.call('PEXPIRE', lock_key, string.format('%d', lease_ms + RETENTION_MS))
      redis.call('HSET', lock_key, 'hold', deadline .. ' ' .. lease_ms .. ' ' .. NO
        .. string.sub(summary, PUSHED + 1, HOLDS) .. ' ' .. fence .. ' ' .. kept)
      stays_until = deadline
    end
    if stays_until and (not queue_key or string.sub(summary, HAS_WAITERS, HAS_WAITERS) == NO) then
      return RELEASED .. ' ' .. request .. ' ' .. now .. ' ' .. stays_until .. ' 0 0'
    end
  end
end
local is_only = was_until > now and string.sub(summary, HOLDS) == ONE .. ' ' .. fence .. ' ' .. request
-- The fast path: nobody has to be told, and the key lives no longer than it may. A server without memory
-- refuses a script that begins with this write.
if is_only and string.sub(summary, HAS_WAITERS, HAS_WAITERS) == NO and was_until - now <= RETENTION_MS then
  local released = RELEASED_UNTIL .. string.sub(summary, UNTIL_END + 1)
  if last_fence then
    released = RELEASED_UNTIL .. string.sub(summary, UNTIL_END + 1, FENCE - 1) .. last_fence
      .. string.sub(summary, FENCE_END + 1)
  end
  if type(redis.pcall('HSET', lock_key, 'hold', released)) == 'number' then
    return RELEASED .. ' ' .. request .. ' ' .. now .. ' 0 0 0'
  end
end
