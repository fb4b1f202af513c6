-- renew: prolongs a hold. It never makes one that is gone.
--
-- Called by the keeper for each hold, when a third of what it has is used up. The first renewal of a pushed grant is
-- its claim. It declares the lock alone, so that the migration of a cluster's slot never stops a renewal.
--
-- Returns `status request now deadline`, times in ms of the server's clock:
--   1 held       until `deadline`
--   2 expired    not held any more: the lease ran out, and nobody has had the lock since
--   3 taken      not held any more: the lock has changed hands, or was released
--   0 newer format, nothing done
--
-- Writes the lock.

-- KEYS[1]  hash: the lock
local lock_key = KEYS[1]
-- ARGV[1]  string: the request
-- ARGV[2]  the fence
-- ARGV[3]  ms: the lease
-- ARGV[4]  ms of the server's clock: the deadline is never later
local request, fence, lease_ms, cap_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local now_us, now = server_clock()
local lock = read_lock(lock_key, now_us)
if not lock then
  return '0 ' .. request .. ' ' .. now .. ' 0'
end
local held_until = settle(lock_key, nil, lock, now, request)
local holds = define_holds(lock_key, lock, now)
if not held_until or lock.fence ~= fence then
  return (holds.ran_out(fence) and '2 ' or '3 ') .. request .. ' ' .. now .. ' ' .. lock.deadline
end
local deadline = math.min(now + lease_ms, cap_ms) .. ''
if deadline <= held_until then
  deadline = held_until
elseif lock.holds then
  lock.holds[request] = {deadline = deadline, lease = lease_ms, changed = true}
else
  lock.deadline, lock.lease = deadline, lease_ms
end
if request == lock.request then
  lock.pushed = '0'
end
holds.write()
return '1 ' .. request .. ' ' .. now .. ' ' .. deadline
