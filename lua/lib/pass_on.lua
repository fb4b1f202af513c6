-- The last part of release and withdraw, when nobody holds the lock any more: the next request in the queue
-- gets the lock, or the lock is free.
--
-- Both scripts have defined what this uses: the keys, `channel_prefix`, `floor_us`, `request`, `summary`,
-- `was_until`, the `status` to return, `lock` (what `load_holds` returned, or nil), `was_held` (whether there
-- was a hold before), `last_fence` (the last one that the hold has used, if its client has told) and `head`
-- (of `hand_over`).

local more, denied = NO, NO
local fence_of_next, next_request, deadline, lease_ms, pushed
fence_of_next, summary = next_fence(summary, now_us, floor_us, last_fence)
if queue_key then
  more, denied, fence_of_next, next_request, deadline, lease_ms, pushed =
    hand_over(lock_key, queue_key, channel_prefix, summary, fence_of_next, now, lock, nil, nil, head)
end
if next_request then
  grant(lock_key, lock, summary, deadline, lease_ms, pushed, fence_of_next, next_request)
elseif was_held then
  -- The rest of the summary is kept, since it describes the last hold. The key lives for as long as that hold
  -- was to last, and RETENTION_MS. It is worth a command to shorten this only if it is long.
  if lock and lock.holds then
    lock.delete_fields()
  end
  local has_waiters = more == YES and string.sub(summary, HAS_WAITERS, HAS_WAITERS) or NO
  redis.call('HSET', lock_key, 'hold', RELEASED_UNTIL .. string.sub(summary, UNTIL_END + 1, HAS_WAITERS - 1)
    .. has_waiters .. string.sub(summary, HAS_WAITERS + 1))
  if was_until - now > RETENTION_MS then
    redis.call('PEXPIRE', lock_key, RETENTION_MS .. '')
  end
end
return status .. ' ' .. request .. ' ' .. now .. ' ' .. (deadline or FREE) .. ' ' .. denied .. ' ' .. more
