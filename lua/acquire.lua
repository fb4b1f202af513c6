-- acquire: makes a request the holder, or queues it, or tells how long the lock is held.
--
-- Called by every acquire call of a client: once, and again under the same request after an unknown outcome, after a
-- reconnect, and as the question that each waiting room asks from time to time.
--
-- Returns {status, request, now, deadline, ...}, times in ms of the server's clock:
--   1 granted    ..., fence, pushed      by this call, or (the same fence again) by an earlier one
--   2 queued     ..., ttl, ticket, ahead, enqueued, seen, denied, sibling, fence, deadline, pushed
--   3 busy       the same, for a try, which is never queued
--   4 late       nothing done: the call came after its `not_after`
--   5 gone       nothing done: the client has no record, so all requests of its room must come back
--   6 more       a bound was reached, with the lock free: call again
--   0 newer format, nothing done
-- `ttl`: ms until the lock can next be free. `ahead`: how many are queued before it, at most. `enqueued`: 1 if this
-- call queued it, or moved it forward to its ticket. `seen`: 1 if the server sees the client's subscription (questions only). `denied`: 1 if the ACL refused a push.
-- `sibling` and what follows: the holder's grant if the holder is a request of the same client, which may not have
-- heard; else '', 0, 0, 0.
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
-- ARGV[4]  ms of the server's clock: after it nothing new is done
-- ARGV[5]  µs of the server's clock: the ticket that the request had before, or ''
-- ARGV[6]  ms: how long the client's record lives
-- ARGV[7]  string: what the clients' unlock channels begin with
-- ARGV[8]  'publish', 'spublish' or 'unproven': how to publish, and what a count of 0 says (lib/hand_over.lua)
local request, mode, lease_ms, not_after_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local ticket_us, heartbeat_ms, channel, way = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

-- Adds a hold to those of its owner. The first gets an entry of its own with the second.
local function add_hold(lock, deadline)
  lock.holds = lock.holds or {[lock.request] = {deadline = lock.deadline, lease = lock.lease, changed = true}}
  lock.holds[request] = {deadline = deadline, lease = lease_ms, changed = true}
  lock.count = lock.count + 1
end

-- Keeps a key at least as long as records live: nobody's shorter heartbeat takes it from under another's.
local function keep(key)
  if redis.call('PTTL', key) < heartbeat_ms + KEPT_MS then
    redis.call('PEXPIRE', key, (heartbeat_ms + KEPT_MS) .. '')
  end
end

local now_us, now_ms = server_clock()
local lock = read_lock(lock_key, clients_key, now_ms, client_of(request))
if not lock then
  return {0, request, now_ms, 0}
end

local function granted()
  local pushed = request == lock.request and tonumber(lock.pushed) or 0
  return {1, request, now_ms, deadline_of(lock, request), tonumber(lock.fence), pushed}
end

if deadline_of(lock, request) then
  return granted()
end
if now_ms > not_after_ms then
  return {4, request, now_ms, lock.deadline}
end
if mode == 'question' then
  local alive_until = redis.call('ZSCORE', clients_key, client_of(request))
  if not alive_until or tonumber(alive_until) <= now_ms then
    return {5, request, now_ms, lock.deadline}
  end
end
if lock.count > 0 and lock.owner == owner_of(request) then
  -- First, since a queue of another type is an error.
  redis.call('ZREM', queue_key, request)
  add_hold(lock, now_ms + lease_ms)
  write_holds(lock_key, lock, now_ms)
  return granted()
end

local queued = redis.call('ZCARD', queue_key)
if lock.count == 0 and queued == 0 then
  grant(lock_key, lock, request, next_fence(lock, now_us), now_ms, lease_ms, '0')
  if lock.ended then
    forget_ended(clients_key, lock)
  end
  return granted()
end

local enqueued = 0
if mode ~= 'try' then
  if ticket_us == '' or tonumber(ticket_us) > tonumber(now_us) then
    ticket_us = now_us
  end
  -- A late first attempt, which brings no ticket, may have queued it behind its place.
  enqueued = redis.call('ZADD', queue_key, 'LT', 'CH', ticket_us, request)
  -- One too many if it was moved.
  queued = queued + enqueued
  if enqueued == 1 and queued == 1 then
    keep(queue_key)
  end
end

local denied = 0
if lock.count == 0 then
  local outcome
  outcome, denied =
    hand_over(lock_key, queue_key, clients_key, channel, way, lock, now_us, now_ms, request, lease_ms)
  if outcome == MORE then
    return {6, request, now_ms, 0}
  elseif outcome == NOBODY then
    grant(lock_key, lock, request, next_fence(lock, now_us), now_ms, lease_ms, '0')
  end
  if lock.request == request then
    return granted()
  end
end

local client, seen = client_of(request), 0
if mode == 'open' or mode == 'question' then
  redis.call('ZREMRANGEBYSCORE', clients_key, '-inf', now_ms .. '')
  redis.call('ZADD', clients_key, (now_ms + heartbeat_ms) .. '', client)
  keep(clients_key)
  keep(queue_key)
end
if mode == 'question' then
  local counted
  if way == 'spublish' then
    counted = redis.call('PUBSUB', 'SHARDNUMSUB', channel .. client)
  else
    counted = redis.call('PUBSUB', 'NUMSUB', channel .. client)
  end
  seen = counted[2] > 0 and 1 or 0
end

local status, ticket, ahead = 3, 0, queued
if mode ~= 'try' then
  if enqueued == 0 then
    ticket_us = redis.call('ZSCORE', queue_key, request)
  end
  status, ticket, ahead = 2, tonumber(ticket_us) or 0, queued - 1
end
local sibling, fence, deadline, pushed = '', 0, 0, 0
if client_of(lock.request) == client then
  sibling, fence, deadline, pushed =
    lock.request, tonumber(lock.fence), deadline_of(lock, lock.request), tonumber(lock.pushed)
end
return {status, request, now_ms, lock.deadline, lock.deadline - now_ms, ticket, ahead, enqueued, seen, denied,
  sibling, fence, deadline, pushed}
