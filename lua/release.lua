-- release: ends a hold, and hands the lock over when that hold was the last.
--
-- Called when a guard is released, in the background when a guard was dropped, and by a forced release. A
-- second call changes nothing, because it finds no such hold.
--
-- Returns `status request now deadline denied incomplete`, times in ms of the server's clock:
--   1 released       the last hold is gone
--   2 one fewer      the owner has other holds; `deadline` is the latest of theirs
--   3 expired        not held any more: the lease ran out, and nobody has had the lock since
--   4 taken          not held any more: the lock has changed hands, or was released already
--   5 elsewhere      nothing done: somebody may be queued, and this is a call for the lock alone
--   0 newer format   nothing done
-- `denied`: 1 if the ACL refused a push. `incomplete`: 1 if a bound was reached with the lock free: call
-- again.
--
-- Writes the lock when a hold ends; the queue and the clients as it hands over.
-- Publishes to the next request in the queue.

-- KEYS[1]  hash: the lock
-- KEYS[2]  sorted set: the queue, request -> ticket (µs). A call for the lock alone leaves out this key and
--          the next one (acquire.lua)
-- KEYS[3]  sorted set: the clients, client -> alive until (ms)
local lock_key, queue_key, clients_key = KEYS[1], KEYS[2], KEYS[3]
-- ARGV[1]  string: the request
-- ARGV[2]  'grant' (the hold of this request under this fence, and nothing else of it: a release that runs
--          late must not free a newer grant) or 'force' (all holds under this fence)
-- ARGV[3]  the fence
-- ARGV[4]  string: the start of the clients' channels (lib/hand_over.lua)
local request, what, fence, channel_prefix = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local summary = redis.call('HGET', lock_key, 'hold') or ''
if summary >= NEWER then
  return '0 ' .. request .. ' ' .. now .. ' 0'
end

local was_until = string.sub(summary, 1, 13)
local is_only = was_until > now and string.sub(summary, 28) == '1 ' .. fence .. ' ' .. request
-- The fast path: nobody has to be told, and the key lives no longer than it may. A server without memory
-- refuses a script that begins with this write.
if is_only and string.sub(summary, 26, 26) == '0' and was_until - now <= RETENTION_MS
  and type(redis.pcall('HSET', lock_key, 'hold', '0000000000000' .. string.sub(summary, 14))) == 'number' then
  return '1 ' .. request .. ' ' .. now .. ' 0 0 0'
end
