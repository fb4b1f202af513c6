-- renew: prolongs a hold. It never brings back a hold that is gone.
--
-- Called in the background for each hold, when a third of its time is used up. The first renewal of a pushed
-- grant is its claim. It declares the lock alone, so that the migration of a cluster's slot never stops a
-- renewal.
--
-- Returns `status request now deadline`. Times are in ms of the server's clock. The status is NEWER_FORMAT or
-- one of these:
local HELD = '1'     -- until `deadline`
local EXPIRED = '2'  -- not held any more: the lease ran out, and nobody has had the lock since
local TAKEN = '3'    -- not held any more: the lock has changed hands, or was released

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
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
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
    return HELD .. ' ' .. request .. ' ' .. now .. ' ' .. wanted
  end
end

local lock, held_until = load_holds(lock_key, nil, summary, now, request)
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
return HELD .. ' ' .. request .. ' ' .. now .. ' ' .. held_until
