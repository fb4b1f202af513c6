-- release: ends a hold, and hands the lock over when it was the last.
--
-- Called by a guard's release, by the keeper for guards that were dropped and for requests that are never used again
-- (cancelled, timed out, granted too late), and by a forced release. A repeated call finds what the first one did.
--
-- Returns `status request now deadline denied more`, times in ms of the server's clock:
--   1 released     the last hold is gone
--   2 one fewer    the owner has other holds; `deadline` is the latest of theirs
--   3 expired      not held any more: the lease ran out, and nobody has had the lock since
--   4 taken        not held any more: the lock has changed hands, or was released already
--   0 newer format, nothing done
-- `denied`: 1 if the ACL refused a push. `more`: 1 if a bound was reached with the lock free: call again.
--
-- Writes the lock when a hold ends; the queue and the clients as it hands over.
-- Publishes to the next in the queue.

-- KEYS[1]  hash: the lock
-- KEYS[2]  sorted set: the queue, request -> ticket (µs)
-- KEYS[3]  sorted set: the clients, client -> alive until (ms)
local lock_key, queue_key, clients_key = KEYS[1], KEYS[2], KEYS[3]
-- ARGV[1]  string: the request
-- ARGV[2]  'grant' (the hold of this request under this fence, and nothing else of it: a release that runs late must not free
--          a newer grant), 'out' (whatever the request has, hold or queue entry, for good) or 'force' (all holds under this fence)
-- ARGV[3]  the fence; '' for 'out'
-- ARGV[4]  string: the address of the clients (lib/hand_over.lua)
local request, what, fence, address = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local line = redis.call('HGET', lock_key, 'hold') or ''
if line >= NEWER then
  return '0 ' .. request .. ' ' .. now .. ' 0'
end

local status, was_held, was_until, lock = '1', true, string.sub(line, 1, 13), nil
if was_until <= now or string.sub(line, 26) ~= '1 ' .. fence .. ' ' .. request then
  -- It is not the only hold there is, or not one under this fence.
  local held_until
  lock, held_until = settle(lock_key, clients_key, line, now, request)
  was_held = lock.count > 0
  local is_last = string.sub(line, 28, 43) == fence
  if what == 'out' then
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

fence = next_fence(line, now_us)
local more, denied, heir, deadline, lease_ms, pushed = hand_over(queue_key, clients_key, address, fence, now, lock)
if heir then
  grant(lock_key, lock, deadline, lease_ms, pushed, fence, heir)
elseif was_held then
  -- Nobody has it. What else the line says stays, and tells of the last hold. It is kept for as long as that was to be held, and
  -- KEPT_MS: only a long rest is worth a command.
  if lock and lock.holds then
    lock.erase()
  end
  redis.call('HSET', lock_key, 'hold', '0000000000000' .. string.sub(line, 14))
  if was_until - now > KEPT_MS then
    redis.call('PEXPIRE', lock_key, KEPT_MS .. '')
  end
end
return status .. ' ' .. request .. ' ' .. now .. ' ' .. (deadline or FREE) .. ' ' .. denied .. ' ' .. more
