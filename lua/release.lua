-- release: ends a hold, and hands the lock over when that hold was the last.
--
-- Called when a guard is released, in the background when a guard was dropped, and by a forced release. A
-- second call changes nothing, because it finds no such hold.
--
-- Returns `status request now deadline denied incomplete`. Times are in ms of the server's clock. The status
-- is NEWER_FORMAT or one of these:
local RELEASED = '1'      -- the last hold is gone
local ONE_FEWER = '2'     -- the owner has other holds; `deadline` is the latest of theirs
local EXPIRED = '3'       -- not held any more: the lease ran out, and nobody has had the lock since
local TAKEN = '4'         -- not held any more: the lock has changed hands, or was released already
local ELSEWHERE = '5'     -- nothing done: somebody may be queued, and this is a call for the lock alone
local CLOCK_BEHIND = '6'  -- nothing done: the floor is more than MAX_AHEAD_US ahead of the server's clock
-- `denied`: 1 if the ACL refused a push. `incomplete`: 1 if a bound was reached with the lock free: call
-- again.
--
-- Writes the lock when a hold ends; the queue and the clients as it hands over.
-- Publishes to the next request in the queue.

-- KEYS[1]  hash: the lock
-- KEYS[2]  sorted set: the queue, request -> ticket (µs). A call for the lock alone leaves out this key and
--          the next one (acquire.lua)
-- KEYS[3]  sorted set: the clients, client -> alive until (ms)
local lock_key, queue_key, clients_key = KEYS[1], KEYS[2], KEYS[3]
-- ARGV[1]  string: the request
-- ARGV[2]  'grant' (the hold of this request under this fence, and nothing else of it: a release that runs
--          late must not free a newer grant), 'turns' (the same, and the hold has used more fences than this
--          one) or 'force' (all holds under this fence)
-- ARGV[3]  the fence
-- ARGV[4]  string: the start of the clients' channels (lib/hand_over.lua)
-- ARGV[5]  'turns': the last fence that the hold has used, of 16 digits
--          otherwise only in a quorum, µs, of 16 digits: the floor, which is the least fence of the next
--          owner and takes the place of the server's time
local request, what, fence, channel_prefix, floor_us = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local summary = redis.call('HGET', lock_key, 'hold') or ''
if summary >= NEWER then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end

local was_until = string.sub(summary, UNTIL, UNTIL_END)
if floor_us then
  if what == 'turns' then
    local last_fence = floor_us
    what, floor_us = 'grant', nil
    if was_until > now and string.sub(summary, HOLDS) == ONE .. ' ' .. fence .. ' ' .. request then
      -- What follows writes this summary, and knows the hold by its last fence.
      summary = string.sub(summary, UNTIL, FENCE - 1) .. last_fence .. string.sub(summary, FENCE_END + 1)
      fence = last_fence
    end
  elseif floor_us - now_us > MAX_AHEAD_US then
    return CLOCK_BEHIND .. ' ' .. request .. ' ' .. now .. ' 0 0 0'
  end
end
local is_only = was_until > now and string.sub(summary, HOLDS) == ONE .. ' ' .. fence .. ' ' .. request
-- The fast path: nobody has to be told, and the key lives no longer than it may. A server without memory
-- refuses a script that begins with this write.
if is_only and string.sub(summary, HAS_WAITERS, HAS_WAITERS) == NO and was_until - now <= RETENTION_MS then
  local released = RELEASED_UNTIL .. string.sub(summary, UNTIL_END + 1)
  if type(redis.pcall('HSET', lock_key, 'hold', released)) == 'number' then
    return RELEASED .. ' ' .. request .. ' ' .. now .. ' 0 0 0'
  end
end
