-- release: ends a hold, and hands the lock over when it was the last.
--
-- Called by a guard's release, by the keeper for guards that were dropped and for requests that are never used again
-- (cancelled, timed out, granted too late), and by a forced release. A repeated call finds what the first one did.
--
-- Returns {status, request, now, deadline, denied, more}, times in ms of the server's clock:
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

-- Leaves the lock with nobody, having been held for `left_ms` more. An empty owner tells a release from a lease that
-- ran out. The hash is kept for `left_ms` and KEPT_MS as it is: only a long rest is worth a command.
local function free(lock, left_ms)
  if lock.holds then
    drop_fields(lock_key, lock)
  end
  redis.call('HSET', lock_key, 'owner', '', 'request', '', 'until', '0', 'lease', '0', 'pushed', '0', 'holds', '0')
  if left_ms > KEPT_MS then
    redis.call('PEXPIRE', lock_key, KEPT_MS .. '')
  end
end

local now_us, now_ms = server_clock()
local lock = read_lock(lock_key, clients_key, now_ms, client_of(request))
if not lock then
  return {0, request, now_ms, 0}
end

local status
local was_until = lock.deadline
if what == 'force' then
  if was_until > 0 and lock.fence == fence then
    lock.count, status = 0, 1
  end
elseif deadline_of(lock, request) and (what == 'out' or lock.fence == fence) then
  drop_hold(lock, request)
  status = lock.count > 0 and 2 or 1
end
if what == 'out' then
  redis.call('ZREM', queue_key, request)
  status = status or 1
end
status = status or (ran_out(lock, fence) and 3 or 4)

local outcome, denied = NOBODY, 0
if status == 2 then
  write_holds(lock_key, lock, now_ms)
elseif lock.count == 0 then
  lock.deadline = 0
  outcome, denied = hand_over(lock_key, queue_key, clients_key, channel, way, lock, now_us, now_ms)
  if outcome ~= HANDED and was_until > 0 then
    free(lock, was_until - now_ms)
  end
end
return {status, request, now_ms, lock.deadline, denied, outcome == MORE and 1 or 0}
