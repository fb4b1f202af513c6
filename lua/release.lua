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
-- ARGV[4]  string: what the clients' unlock channels begin with
-- ARGV[5]  'publish', 'spublish' or 'unproven': how to publish, and what a count of 0 says (lib/hand_over.lua)
local request, what, fence, channel, way = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local now_us, now = server_clock()
local lock = read_lock(lock_key, now_us)
if not lock then
  return '0 ' .. request .. ' ' .. now .. ' 0'
end

local fits, was_until = what == 'out' or lock.fence == fence, lock.deadline
local status, holds
if lock.count == 1 and lock.request == request and fits and was_until > now then
  -- The only hold there is, so that all the rest of the hash is over.
  lock.count, status = 0, '1'
else
  local held_until = settle(lock_key, clients_key, lock, now, request)
  was_until = lock.deadline
  if what == 'force' then
    if lock.count > 0 and fits then
      lock.count, status = 0, '1'
    end
  elseif fits and held_until then
    holds = define_holds(lock_key, lock, now)
    holds.drop(request)
    status = lock.count > 0 and '2' or '1'
  end
end
if what == 'out' then
  redis.call('ZREM', queue_key, request)
  status = status or '1'
end
status = status or (define_holds(lock_key, lock, now).ran_out(fence) and '3' or '4')

local outcome, denied = 'nobody', '0'
if status == '2' then
  holds.write()
elseif lock.count == 0 then
  lock.deadline = FREE
  outcome, denied = hand_over(lock_key, queue_key, clients_key, channel, way, lock, now)
  if outcome ~= 'handed' and was_until ~= FREE then
    -- Nobody has it. What else the hash says stays, and tells of the last hold; it is kept for as long as that was to be
    -- held, and KEPT_MS: only a long rest is worth a command.
    if lock.holds then
      lock.erase()
    end
    redis.call('HSET', lock_key, 'until', FREE)
    if was_until - now > KEPT_MS then
      redis.call('PEXPIRE', lock_key, KEPT_MS .. '')
    end
  end
end
return status .. ' ' .. request .. ' ' .. now .. ' ' .. lock.deadline .. ' ' .. denied .. ' ' .. (outcome == 'more' and '1' or '0')
