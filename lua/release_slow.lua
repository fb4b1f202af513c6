-- release, when there is more to do than to free the lock: somebody may have to be told, or this is not the
-- only hold. The header of release.lua explains the arguments and the reply.

if stays_until then
  local more, denied = hand_over(lock_key, queue_key, channel_prefix, summary, nil, now)
  return RELEASED .. ' ' .. request .. ' ' .. now .. ' ' .. stays_until .. ' ' .. denied .. ' ' .. more
end
if not queue_key and string.sub(summary, HAS_WAITERS, HAS_WAITERS) >= YES then
  return ELSEWHERE .. ' ' .. request .. ' ' .. now .. ' 0 0 0'
end
last_fence = last_fence or fence
local status, was_held, lock = RELEASED, true, nil
if not is_only then
  local held_until
  lock, held_until = load_holds(lock_key, summary, now, request)
  summary = lock.summary
  was_held = lock.count > 0
  local is_last = string.sub(summary, FENCE, FENCE_END) == fence
  if held_until and what == 'grant' and is_last then
    lock.drop(request)
    if lock.count > 0 then
      lock.write()
      return ONE_FEWER .. ' ' .. request .. ' ' .. now .. ' ' .. lock.deadline .. ' 0 0'
    end
  elseif what == 'force' and was_held and is_last then
    -- A server that takes no writes refuses this first.
    head = queue_key and (redis.call('ZPOPMIN', queue_key)[1] or false)
    tell_wanted(summary, channel_prefix)
    lock.count, last_fence = 0, nil
  else
    last_fence = nil
    -- True if the lease ran out; false if somebody has had the lock since, or released it.
    local ran_out = summary == '' or (is_last and summary >= NOT_RELEASED)
    status = ran_out and EXPIRED or TAKEN
  end
  if lock.count > 0 then
    return status .. ' ' .. request .. ' ' .. now .. ' ' .. lock.deadline .. ' 0 0'
  end
end
