-- permits_acquire: acquire (acquire.lua) for a semaphore or a read/write lock, with the same arguments.
--
-- Returns `status request now deadline` and the words given here. The status is NEWER_FORMAT or one of these:
local GRANTED, QUEUED, BUSY, EXPIRED_CALL, NOT_REGISTERED, INCOMPLETE = '1', '2', '3', '4', '5', '6'
-- The words are those of acquire, and a grant has its slot after them, or NO_SLOT. A contended reply has the
-- earliest `deadline` of all holds, and tells of no grant of the same client: the own_grant is - 0 0 0.
--
-- Writes the permits when it grants some or finds holds that are over; else what acquire writes.
-- Publishes to requests in the queue for which there are permits.

-- KEYS[1]  hash: the permits
-- KEYS[2]  sorted set: the queue, request -> ticket (µs)
-- KEYS[3]  sorted set: the clients, client -> alive until (ms)
-- KEYS[4]  sorted set: the timers, request -> a time (ms) before which its hold is not over
local lock_key, queue_key, clients_key, timers_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]: as in acquire.lua
local request, mode, lease_ms, not_after = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local heartbeat_ms, channel_prefix, ticket_us = ARGV[5], ARGV[6], ARGV[7]

if not open(lock_key, queue_key, clients_key, timers_key, request) then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
local hold = used > 0 and redis.call('HGET', lock_key, HOLD_FIELD .. request)
if hold then
  -- Others may have run out.
  if hand_over(queue_key, channel_prefix, false) == YES then
    return INCOMPLETE .. ' ' .. request .. ' ' .. now .. ' 0'
  end
  return table.concat({GRANTED, request, now, string.sub(hold, UNTIL, UNTIL_END),
    string.sub(hold, HOLD_FENCE, HOLD_FENCE_END), string.sub(hold, PUSHED, PUSHED), NO,
    string.sub(hold, HOLD_SLOT)}, ' ')
end
if now > not_after then
  write()
  return EXPIRED_CALL .. ' ' .. request .. ' ' .. now .. ' 0'
end
local seen = NO
if mode == 'poll' then
  local pubsub_mode = string.sub(channel_prefix, PUBSUB_MODE, PUBSUB_MODE)
  local sharded = pubsub_mode == SHARDED or pubsub_mode == MIGRATING
  local channel = string.sub(channel_prefix, PREFIX) .. client
  seen = redis.call('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel)[2] > 0 and YES or NO
  -- Clients that are dead may have been the only ones.
  local alive_until = redis.pcall('ZSCORE', clients_key, client)
  if type(alive_until) ~= 'string' or alive_until <= now then
    write()
    return NOT_REGISTERED .. ' ' .. request .. ' ' .. now .. ' 0 ' .. seen
  end
end

local weight, capacity = string.sub(request, WEIGHT, WEIGHT_END), string.sub(request, CAPACITY, CAPACITY_END)
local enqueued, own = NO, nil
if queued > 0 or used + weight > capacity + 0 then
  if mode ~= 'try' then
    if not ticket_us or ticket_us > now_us then
      ticket_us = now_us
    end
    -- A late first attempt, which brings no ticket, may have queued the request behind its place.
    if redis.call('ZADD', queue_key, 'LT', 'CH', ticket_us, request) == 1 then
      -- It may have been there already.
      enqueued, queued = YES, redis.call('ZCARD', queue_key)
      extend_ttl(queue_key, heartbeat_ms)
    end
  end
  local more, _, granted = hand_over(queue_key, channel_prefix, false, request, lease_ms)
  if more == YES then
    return INCOMPLETE .. ' ' .. request .. ' ' .. now .. ' 0'
  end
  own = granted
end
local was_queued = own and mode ~= 'try' and enqueued == NO and YES or NO
if not own and queued == 0 and used + weight <= capacity + 0 then
  local deadline, its_fence, slot = take(weight, capacity, lease_ms)
  add(request, deadline, lease_ms, NO, its_fence, weight, slot)
  write()
  own = {deadline, its_fence, slot}
end
if own then
  return table.concat({GRANTED, request, now, own[1], own[2], NO, was_queued, own[3]}, ' ')
end

if mode == 'register' or mode == 'poll' then
  redis.call('ZADD', clients_key, string.format('%d', now + heartbeat_ms), client)
  local dead = redis.call('ZCOUNT', clients_key, '-inf', now)
  if dead > 0 then
    redis.call('ZPOPMIN', clients_key, math.min(dead, BOUND))
  end
  extend_ttl(clients_key, heartbeat_ms)
  extend_ttl(queue_key, heartbeat_ms)
end
settle(true)
local status, ticket, ahead = BUSY, '0', queued
if mode ~= 'try' then
  status, ticket, ahead = QUEUED, redis.call('ZSCORE', queue_key, request), queued - 1
end
return status .. ' ' .. request .. ' ' .. now .. ' ' .. earliest .. ' ' .. ticket .. ' '
  .. string.format('%d', ahead) .. ' ' .. enqueued .. ' ' .. seen .. ' - 0 0 0'
