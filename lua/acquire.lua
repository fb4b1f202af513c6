-- acquire: makes a request the holder, or queues it, or tells how long the lock is held.
--
-- Called by every acquire call of a client: once, and again under the same request after an unknown outcome, after a
-- reconnect, and as the question that each waiting room asks from time to time.
--
-- Returns `status request now deadline ...`, times in ms of the server's clock:
--   1 granted    ... fence pushed        by this call, or (the same fence again) by an earlier one
--   2 queued     ... ticket ahead enqueued seen denied sibling fence deadline pushed
--   3 busy       the same, for a try, which is never queued
--   4 late       nothing done: the call came after its `not_after`
--   5 gone       nothing done: the client has no record, so all requests of its room must come back
--   6 more       a bound was reached, with the lock free: call again
--   0 newer format, nothing done
-- `deadline` less `now` is how long it takes until the lock can next be free. `ahead`: how many are queued before it, at
-- most. `enqueued`: 1 if this call queued it, or moved it forward to its ticket. `seen`: 1 if the server sees the client's
-- subscription (questions only). `denied`: 1 if the ACL refused a push. `sibling` and what follows: the holder's grant if
-- the holder is a request of the same client, which may not have heard; else - 0 0 0.
--
-- Writes the lock when it changes hands; the queue when it queues; the client's record when it opens or asks.
-- Publishes to the next in the queue when it finds the lock free and another is before it.

-- KEYS[1]  hash: the lock
-- KEYS[2]  sorted set: the queue, request -> ticket (µs)
-- KEYS[3]  sorted set: the clients, client -> alive until (ms)
local lock_key, queue_key, clients_key = KEYS[1], KEYS[2], KEYS[3]
-- ARGV[1]  string: the request
-- ARGV[2]  'try', 'wait', 'open' (wait, and open the client's record) or 'question' (wait, and prolong it)
-- ARGV[3]  ms: the lease of a grant to this call
-- ARGV[4]  ms of the server's clock, of 13 digits: after it nothing new is done
-- ARGV[5]  ms: how long the client's record lives
-- ARGV[6]  string: what the clients' unlock channels begin with
-- ARGV[7]  'publish', 'spublish' or 'unproven': how to publish, and what a count of 0 says (lib/hand_over.lua)
-- ARGV[8]  µs of the server's clock: the ticket that the request had before, if it had one
local request, mode, lease_ms, not_after = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local heartbeat_ms, channel, way, ticket_us = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local function granted(lock, now, deadline)
  local pushed = request == lock.request and lock.pushed or '0'
  return '1 ' .. request .. ' ' .. now .. ' ' .. deadline .. ' ' .. lock.fence .. ' ' .. pushed
end

local now_us, now = server_clock()
local lock = read_lock(lock_key, now_us)
if not lock then
  return '0 ' .. request .. ' ' .. now .. ' 0'
end

local held_until = settle(lock_key, clients_key, lock, now, request)
if held_until then
  return granted(lock, now, held_until)
end
if now > not_after then
  return '4 ' .. request .. ' ' .. now .. ' ' .. lock.deadline
end
if mode == 'question' then
  local alive_until = redis.call('ZSCORE', clients_key, client_of(request))
  if not alive_until or alive_until <= now then
    return '5 ' .. request .. ' ' .. now .. ' ' .. lock.deadline
  end
end
if lock.count > 0 and lock.owner == owner_of(request) then
  -- First, since a queue of another type is an error.
  redis.call('ZREM', queue_key, request)
  local holds, deadline = define_holds(lock_key, lock, now), (now + lease_ms) .. ''
  holds.add(request, deadline, lease_ms)
  holds.write()
  return granted(lock, now, deadline)
end

local queued = redis.call('ZCARD', queue_key)
if lock.count == 0 and queued == 0 then
  grant(lock_key, lock, request, (now + lease_ms) .. '', lease_ms, '0')
  if lock.forget then
    lock.forget()
  end
  return granted(lock, now, lock.deadline)
end

local enqueued = 0
if mode ~= 'try' then
  if not ticket_us or ticket_us > now_us then
    ticket_us = now_us
  end
  -- A late first attempt, which brings no ticket, may have queued it behind its place.
  enqueued = redis.call('ZADD', queue_key, 'LT', 'CH', ticket_us, request)
  -- One too many if it was moved.
  queued = queued + enqueued
  if enqueued == 1 and queued == 1 then
    keep(queue_key, heartbeat_ms + KEPT_MS)
  end
end

local denied = '0'
if lock.count == 0 then
  local outcome
  outcome, denied = hand_over(lock_key, queue_key, clients_key, channel, way, lock, now, request, lease_ms)
  if outcome == 'more' then
    return '6 ' .. request .. ' ' .. now .. ' 0'
  elseif outcome == 'nobody' then
    grant(lock_key, lock, request, (now + lease_ms) .. '', lease_ms, '0')
  end
  if lock.request == request then
    return granted(lock, now, lock.deadline)
  end
end

local client, seen = client_of(request), '0'
if mode == 'open' or mode == 'question' then
  redis.call('ZREMRANGEBYSCORE', clients_key, '-inf', now)
  redis.call('ZADD', clients_key, (now + heartbeat_ms) .. '', client)
  keep(clients_key, heartbeat_ms + KEPT_MS)
  keep(queue_key, heartbeat_ms + KEPT_MS)
end
if mode == 'question' then
  local counted
  if way == 'spublish' then
    counted = redis.call('PUBSUB', 'SHARDNUMSUB', channel .. client)
  else
    counted = redis.call('PUBSUB', 'NUMSUB', channel .. client)
  end
  seen = counted[2] > 0 and '1' or '0'
end

local status, ticket, ahead = '3', '0', queued
if mode ~= 'try' then
  if enqueued == 0 then
    ticket_us = redis.call('ZSCORE', queue_key, request)
  end
  status, ticket, ahead = '2', ticket_us, queued - 1
end
local sibling = '- 0 0 0'
if client_of(lock.request) == client then
  local deadline = lock.holds and lock.holds[lock.request].deadline or lock.deadline
  sibling = lock.request .. ' ' .. lock.fence .. ' ' .. deadline .. ' ' .. lock.pushed
end
return status .. ' ' .. request .. ' ' .. now .. ' ' .. lock.deadline .. ' ' .. ticket .. ' ' .. ahead .. ' ' .. enqueued
  .. ' ' .. seen .. ' ' .. denied .. ' ' .. sibling
