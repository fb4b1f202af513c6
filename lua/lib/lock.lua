-- Sees to it that a key lives for so long and KEPT_MS at least. It lives 10 s longer, so that most calls need not prolong it.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms + KEPT_MS then
    redis.call('PEXPIRE', key, string.format('%d', ms + KEPT_MS + 10000))
  end
end

-- The fence of the next owner: larger than the last one, also when the clock was set back.
local function next_fence(line, now_us)
  local fence = string.sub(line, 30, 45)
  if fence >= now_us then
    return string.format('%d', fence + 1)
  end
  return now_us
end

-- Makes `request` the only holder of a lock that is free. `lock` is what `settle` returned, nil where it was not called.
-- Returns the line.
local function grant(lock_key, lock, deadline, lease_ms, pushed, waited, fence, request)
  if lock and lock.holds then
    lock.erase()
  end
  local line = deadline .. ' ' .. lease_ms .. ' ' .. pushed .. ' ' .. waited .. ' 1 ' .. fence .. ' ' .. request
  redis.call('HSET', lock_key, 'hold', line)
  keep(lock_key, lease_ms)
  if lock and lock.forget then
    lock.forget()
  end
  return line
end
