-- The last part of renew and look: prolongs the hold, if there is one.
--
-- This part uses what both scripts have defined by then: `lock_key`, the first four arguments, `summary`, and
-- `more_words`, which end the reply for a hold.

local wanted = string.format('%d', math.min(now + lease_ms, cap_ms))

if string.sub(summary, HOLDS) == ONE .. ' ' .. fence .. ' ' .. request then
  -- This is the only hold. If it goes on, and its deadline is not too far ahead, there is nothing to settle.
  local deadline, last_ms = string.sub(summary, UNTIL, UNTIL_END), string.sub(summary, LEASE, LEASE_END)
  if deadline > now and deadline - now <= last_ms + 0 then
    if wanted <= deadline then
      wanted, lease_ms = deadline, last_ms
    end
    -- PEXPIRE comes first: an out-of-memory server lets it pass, and then whatever follows.
    redis.call('PEXPIRE', lock_key, string.format('%d', wanted - now + RETENTION_MS))
    local renewed = wanted .. ' ' .. lease_ms .. ' ' .. NO .. string.sub(summary, PUSHED + 1)
    redis.call('HSET', lock_key, 'hold', renewed)
    return HELD .. ' ' .. request .. ' ' .. now .. ' ' .. wanted .. more_words
  end
end

local lock, held_until = load_holds(lock_key, summary, now, request)
local is_last = string.sub(summary, FENCE, FENCE_END) == fence
if not held_until or not is_last then
  local ran_out = summary == '' or (is_last and summary >= NOT_RELEASED)
  return (ran_out and EXPIRED or TAKEN) .. ' ' .. request .. ' ' .. now .. ' ' .. lock.deadline
end
if wanted > held_until then
  lock.set_hold(request, wanted, lease_ms)
  held_until = wanted
end
lock.write(request)
return HELD .. ' ' .. request .. ' ' .. now .. ' ' .. held_until .. more_words
