-- A hold reserves so many fences beyond its own, one for each further turn that it may serve.
local RESERVED = 999
-- How far ahead of the time of the grant the fences of turns may be. The clients keep to that. The server may
-- have lost a lock whose holder still begins turns. So where there is no lock, the next fence is ahead of the
-- time by as much.
local TURNS_AHEAD_US = 2000

-- The fence of the next owner. It is larger than all that the last hold can have used, also when the clock
-- was set back, and when the server has lost the lock. `last_fence` is the last one that the hold has used,
-- if its client has told. A hold that ran out or was ended by force may have used all that it reserved. In a
-- quorum, the floor of the call takes the place of the server's time. The second value is the summary with
-- the last fence that may have been used.
local function next_fence(summary, now_us, floor_us, last_fence)
  if summary == '' and not floor_us then
    return string.format('%d', now_us + TURNS_AHEAD_US), summary
  end
  local least_us = floor_us or now_us
  local fence = string.sub(summary, FENCE, FENCE_END)
  if summary >= NOT_RELEASED and last_fence ~= fence then
    fence = last_fence or string.format('%d', fence + RESERVED)
    summary = string.sub(summary, UNTIL, FENCE - 1) .. fence .. string.sub(summary, FENCE_END + 1)
  end
  if fence >= least_us then
    return string.format('%d', fence + 1), summary
  end
  return least_us, summary
end

-- Makes `request` the only holder of a lock that is free. `lock` is what `load_holds` returned, or nil where
-- it was not called, and `before` the summary so far, or nil if nobody is queued. Returns the new summary.
local function grant(lock_key, lock, before, deadline, lease_ms, pushed, fence, request)
  local has_waiters = NO
  if before then
    has_waiters = string.sub(before, HAS_WAITERS, HAS_WAITERS) == ABSENT and ABSENT or YES
  end
  if lock and lock.holds then
    lock.delete_fields()
  end
  local summary = deadline .. ' ' .. lease_ms .. ' ' .. pushed .. ' ' .. has_waiters .. ' ' .. ONE .. ' '
    .. fence .. ' ' .. request
  redis.call('HSET', lock_key, 'hold', summary)
  extend_ttl(lock_key, lease_ms)
  if lock and lock.absent then
    redis.call('HSET', lock_key, 'absent', lock.absent)
  end
  return summary
end
