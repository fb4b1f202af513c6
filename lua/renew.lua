-- renew: prolongs a hold. It never brings back a hold that is gone.
--
-- Called in the background for each hold, when a third of its time is used up. The first renewal of a pushed
-- grant is its claim. It declares the lock alone, so that the migration of a cluster's slot never stops a
-- renewal.
--
-- Returns `status request now deadline`, times in ms of the server's clock:
--   1 held           until `deadline`
--   2 expired        not held any more: the lease ran out, and nobody has had the lock since
--   3 taken          not held any more: the lock has changed hands, or was released
--   0 newer format   nothing done
--
-- Writes the lock.

-- KEYS[1]  hash: the lock
local lock_key = KEYS[1]
-- ARGV[1]  string: the request
-- ARGV[2]  the fence
-- ARGV[3]  ms, of 8 digits: the lease
-- ARGV[4]  ms of the server's clock: the deadline is never later
local request, fence, lease_ms, cap_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local summary = redis.call('HGET', lock_key, 'hold') or ''
if summary >= NEWER then
  return '0 ' .. request .. ' ' .. now .. ' 0'
end
local wanted = string.format('%d', math.min(now + lease_ms, cap_ms))

if string.sub(summary, 28) == '1 ' .. fence .. ' ' .. request then
  -- This is the only hold. If it goes on, and its deadline is not too far ahead, there is nothing to settle.
  local deadline, last_ms = string.sub(summary, 1, 13), string.sub(summary, 15, 22)
  if deadline > now and deadline - now <= last_ms + 0 then
    if wanted <= deadline then
      wanted, lease_ms = deadline, last_ms
    end
    -- PEXPIRE comes first: an out-of-memory server lets it pass, and then whatever follows.
    redis.call('PEXPIRE', lock_key, string.format('%d', wanted - now + RETENTION_MS))
    redis.call('HSET', lock_key, 'hold', wanted .. ' ' .. lease_ms .. ' 0' .. string.sub(summary, 25))
    return '1 ' .. request .. ' ' .. now .. ' ' .. wanted
  end
end

local lock, held_until = load_holds(lock_key, nil, summary, now, request)
local is_last = string.sub(summary, 30, 45) == fence
if not held_until or not is_last then
  local ran_out = summary == '' or (is_last and summary > '1')
  return (ran_out and '2 ' or '3 ') .. request .. ' ' .. now .. ' ' .. lock.deadline
end
if wanted > held_until then
  lock.set_hold(request, wanted, lease_ms)
  held_until = wanted
end
lock.write(request)
return '1 ' .. request .. ' ' .. now .. ' ' .. held_until
