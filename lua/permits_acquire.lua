-- permits_acquire: acquire (acquire.lua) for a semaphore or a read/write lock, with the same arguments.
--
-- Returns `status request now deadline` and the words given here. The status is NEWER_FORMAT or one of these:
local GRANTED, QUEUED, BUSY, EXPIRED_CALL, INCOMPLETE = '1', '2', '3', '4', '5'
-- The words are those of acquire, and a grant has its slot after them, or NO_SLOT. A contended reply has the
-- earliest `deadline` of all holds, and tells of no grant of the same client: the own_grant is - 0 0 0.
--
-- Writes the permits when it grants some or finds holds that are over; else what acquire writes.
-- Publishes to requests in the queue for which there are permits.

-- KEYS[1]  hash: the permits
-- KEYS[2]  sorted set: the queue, request -> ticket (µs)
-- KEYS[3]  sorted set: the timers, request -> a time (ms) before which its hold is not over
local lock_key, queue_key, timers_key = KEYS[1], KEYS[2], KEYS[3]
-- ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]: as in acquire.lua
local request, mode, lease_ms, not_after = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local channel_prefix, ticket_us = ARGV[5], ARGV[6]

local permits = open(lock_key, queue_key, timers_key, request, channel_prefix)
if not permits then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
local hold = permits.used > 0 and redis.call('HGET', lock_key, HOLD_FIELD .. request)
if not hold and now > not_after then
  write(permits)
  return EXPIRED_CALL .. ' ' .. request .. ' ' .. now .. ' 0'
end
local client = string.sub(request, CLIENT, CLIENT_END)

local weight, capacity = string.sub(request, WEIGHT, WEIGHT_END), string.sub(request, CAPACITY, CAPACITY_END)
local waiting, enqueued, more = permits.queued, NO, NO
if hold then
  -- Others may have run out.
  more = hand_over(permits, false)
elseif waiting > 0 or permits.used + weight > capacity + 0 then
  if mode ~= 'try' then
    if not ticket_us or ticket_us > now_us then
      ticket_us = now_us
    end
    -- A late first attempt, which brings no ticket, may have queued the request behind its place.
    if redis.call('ZADD', queue_key, 'LT', 'CH', ticket_us, request) == 1 then
      -- It may have been there already.
      enqueued, permits.queued = YES, redis.call('ZCARD', queue_key)
    end
    if mode == 'poll' or permits.queued == 1 then
      extend_ttl(queue_key, 0)
    end
    -- A client that calls is not absent.
    if string.find(permits.absent, client, 1, true) then
      permits.absent, permits.is_changed = string.gsub(permits.absent, client .. ' ', ''), true
    end
  end
  more = hand_over(permits, false, lease_ms)
end
hold = hold or permits.holds[request]
if more == NO and not hold and permits.queued == 0 and permits.used + weight <= capacity + 0 then
  take(permits, request, lease_ms, NO)
  hold, permits.absent = permits.holds[request], ''
end
write(permits)
if more == YES then
  return INCOMPLETE .. ' ' .. request .. ' ' .. now .. ' 0'
elseif hold then
  local was_queued = permits.holds[request] and waiting > 0 and mode ~= 'try' and enqueued == NO and YES or NO
  return GRANTED .. ' ' .. request .. ' ' .. now .. ' ' .. string.sub(hold, UNTIL, UNTIL_END) .. ' '
    .. string.sub(hold, HOLD_FENCE, HOLD_FENCE_END) .. ' ' .. string.sub(hold, PUSHED, PUSHED) .. ' '
    .. was_queued .. ' ' .. string.sub(hold, HOLD_SLOT)
end

local earliest = settle(permits, true)
local status, ticket, ahead = BUSY, '0', permits.queued
if mode ~= 'try' then
  ticket = enqueued == YES and ticket_us or redis.call('ZSCORE', queue_key, request)
  status, ahead = QUEUED, ahead - 1
end
return status .. ' ' .. request .. ' ' .. now .. ' ' .. earliest .. ' ' .. ticket .. ' '
  .. string.format('%d', ahead) .. ' ' .. enqueued .. ' - 0 0 0'
