-- Nobody holds the lock any more: it goes to the next in the queue, or is free. This ends the scripts by which a hold may have
-- ended: code of theirs, after `lock`, what `settle` returned (or nil), and `was_held`, whether there was a hold before.

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
