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
-- ARGV[3]  ms, of 8 digits: the lease of a grant to this call
-- ARGV[4]  ms of the server's clock, of 13 digits: after it nothing new is done
-- ARGV[5]  ms: how long the client's record lives
-- ARGV[6]  string: the address of the clients (lib/hand_over.lua)
-- ARGV[7]  µs of the server's clock: the ticket that the request had before, if it had one
local request, mode, lease_ms, not_after = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local heartbeat_ms, address, ticket_us = ARGV[5], ARGV[6], ARGV[7]

local line = redis.call('HGET', lock_key, 'hold') or ''
if line >= NEWER then
  return '0 ' .. request .. ' ' .. now .. ' 0'
end

local deadline, lock, held_until = FREE, nil, nil
if line > '1' then
  deadline = string.sub(line, 1, 13)
  -- One hold that goes on, not too far ahead, and another's: that is most of them, and there is nothing to settle then.
  if deadline <= now or deadline - now > string.sub(line, 15, 22) + 0 or string.sub(line, 26, 26) ~= '1'
    or string.sub(line, 45) == request then
    lock, held_until = settle(lock_key, clients_key, line, now, request)
    line, deadline = lock.line, lock.deadline
  end
end
if held_until then
  local pushed = string.sub(line, 45) == request and string.sub(line, 24, 24) or '0'
  return '1 ' .. request .. ' ' .. now .. ' ' .. held_until .. ' ' .. string.sub(line, 28, 43) .. ' ' .. pushed
end
if now > not_after then
  return '4 ' .. request .. ' ' .. now .. ' ' .. deadline
end
if mode == 'question' then
  local alive_until = redis.call('ZSCORE', clients_key, string.sub(request, 1, 32))
  if not alive_until or alive_until <= now then
    return '5 ' .. request .. ' ' .. now .. ' ' .. deadline
  end
end
-- A request that ends with its colon has no other owner than itself.
if deadline ~= FREE and string.sub(request, -1) ~= ':' and string.sub(request, -33) == string.sub(line, -33) then
  -- First, since a queue of another type is an error.
  redis.call('ZREM', queue_key, request)
  lock = lock or settle(lock_key, clients_key, line, now, request)
  deadline = string.format('%d', now + lease_ms)
  lock.put(request, deadline, lease_ms)
  lock.write()
  return '1 ' .. request .. ' ' .. now .. ' ' .. deadline .. ' ' .. string.sub(line, 28, 43) .. ' 0'
end

local queued, enqueued = redis.call('ZCARD', queue_key), '0'
if mode ~= 'try' and (deadline ~= FREE or queued > 0) then
  if not ticket_us or ticket_us > now_us then
    ticket_us = now_us
  end
  -- A late first attempt, which brings no ticket, may have queued it behind its place.
  if redis.call('ZADD', queue_key, 'LT', 'CH', ticket_us, request) == 1 then
    -- One too many if it was moved.
    queued, enqueued = queued + 1, '1'
    if queued == 1 then
      keep(queue_key, heartbeat_ms)
    end
  end
end

local denied = '0'
if deadline == FREE then
  local fence, more, heir, heir_ms, pushed = next_fence(line, now_us), '0', nil, nil, nil
  if queued > 0 then
    more, denied, heir, deadline, heir_ms, pushed =
      hand_over(queue_key, clients_key, address, fence, now, lock, request, lease_ms)
  end
  if more == '1' then
    return '6 ' .. request .. ' ' .. now .. ' 0'
  elseif not heir then
    heir, deadline, heir_ms, pushed = request, string.format('%d', now + lease_ms), lease_ms, '0'
  end
  line = grant(lock_key, lock, deadline, heir_ms, pushed, fence, heir)
  if heir == request then
    return '1 ' .. request .. ' ' .. now .. ' ' .. deadline .. ' ' .. fence .. ' 0'
  end
end

local client, seen = string.sub(request, 1, 32), '0'
if mode == 'open' or mode == 'question' then
  redis.call('ZREMRANGEBYSCORE', clients_key, '-inf', now)
  redis.call('ZADD', clients_key, string.format('%d', now + heartbeat_ms), client)
  keep(clients_key, heartbeat_ms)
  keep(queue_key, heartbeat_ms)
end
if mode == 'question' then
  local way, channel, counted = string.sub(address, 1, 1), string.sub(address, 2) .. client, nil
  if way == 's' or way == 'm' then
    counted = redis.call('PUBSUB', 'SHARDNUMSUB', channel)
  else
    counted = redis.call('PUBSUB', 'NUMSUB', channel)
  end
  seen = counted[2] > 0 and '1' or '0'
end

local status, ticket, ahead = '3 ', '0', queued
if mode ~= 'try' then
  if enqueued == '0' then
    ticket_us = redis.call('ZSCORE', queue_key, request)
  end
  status, ticket, ahead = '2 ', ticket_us, queued - 1
end
local sibling = ' - 0 0 0'
if string.sub(line, 45, 76) == client then
  local holder = string.sub(line, 45)
  local holder_until = lock and lock.holds and lock.holds[holder].deadline or deadline
  sibling = ' ' .. holder .. ' ' .. string.sub(line, 28, 43) .. ' ' .. holder_until .. ' ' .. string.sub(line, 24, 24)
end
return status .. request .. ' ' .. now .. ' ' .. deadline .. ' ' .. ticket .. ' ' .. string.format('%d', ahead) .. ' '
  .. enqueued .. ' ' .. seen .. ' ' .. denied .. sibling
