-- release, when there is more to do than to free the lock: somebody may be told, or this is not the only hold. What this is given,
-- and returns, is told in release.lua.

if not queue_key and string.sub(line, 26, 26) == '1' then
  return '5 ' .. request .. ' ' .. now .. ' 0 0 0'
end
local status, was_held, lock = '1', true, nil
if not is_only then
  local held_until
  lock, held_until = settle(lock_key, clients_key, line, now, request)
  was_held = lock.count > 0
  local is_last = string.sub(line, 30, 45) == fence
  if what == 'out' and queue_key then
    redis.call('ZREM', queue_key, request)
  end
  if held_until and (what == 'out' or what == 'grant' and is_last) then
    lock.drop(request)
    if lock.count > 0 then
      lock.write()
      return '2 ' .. request .. ' ' .. now .. ' ' .. lock.deadline .. ' 0 0'
    end
  elseif what == 'force' and was_held and is_last then
    lock.count = 0
  elseif what ~= 'out' then
    -- Whether the lease ran out, rather than that somebody has had the lock since or released it.
    local ran_out = line == '' or (is_last and line > '1')
    status = ran_out and '3' or '4'
  end
  if lock.count > 0 then
    return status .. ' ' .. request .. ' ' .. now .. ' ' .. lock.deadline .. ' 0 0'
  end
end

local more, denied, next_owner_fence, heir, deadline, lease_ms, pushed = '0', '0', nil, nil, nil, nil, nil
if queue_key then
  more, denied, next_owner_fence, heir, deadline, lease_ms, pushed =
    hand_over(queue_key, clients_key, address, next_fence(line, now_us), now, lock)
end
if heir then
  grant(lock_key, lock, deadline, lease_ms, pushed, '1', next_owner_fence, heir)
elseif was_held then
  -- Nobody has it. What else the line says stays, and tells of the last hold. It is kept for as long as that was to be held, and
  -- KEPT_MS: only a long rest is worth a command.
  if lock and lock.holds then
    lock.erase()
  end
  redis.call('HSET', lock_key, 'hold', '0000000000000' .. string.sub(line, 14, 25) .. more .. string.sub(line, 27))
  if was_until - now > KEPT_MS then
    redis.call('PEXPIRE', lock_key, KEPT_MS .. '')
  end
end
return status .. ' ' .. request .. ' ' .. now .. ' ' .. (deadline or FREE) .. ' ' .. denied .. ' ' .. more
