-- How much longer a key lives than it must, so that most calls need not prolong it.
local SLACK_MS = 10000

-- Makes sure that a key lives for at least `ms` and RETENTION_MS.
local function extend_ttl(key, ms)
  if redis.call('PTTL', key) < ms + RETENTION_MS then
    redis.call('PEXPIRE', key, string.format('%d', ms + RETENTION_MS + SLACK_MS))
  end
end

-- The fence of the next owner. It is larger than the last one, also when the clock was set back. `least_us`
-- is the server's time or, in a quorum, the floor of the call.
local function next_fence(summary, least_us)
  local fence = string.sub(summary, FENCE, FENCE_END)
  if fence >= least_us then
    return string.format('%d', fence + 1)
  end
  return least_us
end

-- Makes `request` the only holder of a lock that is free. `lock` is what `load_holds` returned, or nil where
-- it was not called. Returns the summary.
local function grant(lock_key, lock, deadline, lease_ms, pushed, has_waiters, fence, request)
  if lock and lock.holds then
    lock.delete_fields()
  end
  local summary = deadline .. ' ' .. lease_ms .. ' ' .. pushed .. ' ' .. has_waiters .. ' ' .. ONE .. ' '
    .. fence .. ' ' .. request
  redis.call('HSET', lock_key, 'hold', summary)
  extend_ttl(lock_key, lease_ms)
  if lock and lock.drop_client then
    lock.drop_client()
  end
  return summary
end
