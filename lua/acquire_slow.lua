-- acquire, when the lock is not simply free: it is held, or others want it, or its lease ran out, or it was
-- never seen. The header of acquire.lua explains the arguments and the reply.

-- The number of holds that one owner may have. Each makes every call for the lock slower, by 1 µs.
local MAX_HOLDS = 256

local deadline, lock, held_until = FREE, nil, nil
if summary >= NOT_RELEASED then
  deadline = string.sub(summary, UNTIL, UNTIL_END)
  -- One hold, which goes on, ends not too far ahead, and is another request's. That is most of them, and
  -- there is nothing to settle then.
  if deadline <= now or deadline - now > string.sub(summary, LEASE, LEASE_END) + 0
    or string.sub(summary, HOLDS, HOLDS) ~= ONE or string.sub(summary, REQUEST) == request then
    lock, held_until = load_holds(lock_key, summary, now, request)
    summary, deadline = lock.summary, lock.deadline
  end
end
if held_until then
  local pushed = string.sub(summary, REQUEST) == request and string.sub(summary, PUSHED, PUSHED) or NO
  return GRANTED .. ' ' .. request .. ' ' .. now .. ' ' .. held_until .. ' '
    .. string.sub(summary, FENCE, FENCE_END) .. ' ' .. pushed .. ' ' .. NO
end
if now > not_after then
  return EXPIRED_CALL .. ' ' .. request .. ' ' .. now .. ' ' .. deadline
end
if not queue_key and string.sub(summary, HAS_WAITERS, HAS_WAITERS) >= YES then
  return ELSEWHERE .. ' ' .. request .. ' ' .. now .. ' ' .. deadline
end
local client = string.sub(request, CLIENT, CLIENT_END)
-- The request has an owner of its own, and that owner holds the lock already.
if deadline ~= FREE and string.sub(request, LAST) ~= ':'
  and string.sub(request, OWNER) == string.sub(summary, OWNER) then
  lock = lock or load_holds(lock_key, summary, now, request)
  if lock.count >= MAX_HOLDS then
    return FULL .. ' ' .. request .. ' ' .. now .. ' ' .. deadline
  end
  -- A queue of another type is an error here, before anything is written. The first write is one that a
  -- server without memory refuses.
  local place = queue_key and redis.call('ZSCORE', queue_key, request)
  deadline = string.format('%d', now + lease_ms)
  redis.call('HSET', lock_key, HOLD_FIELD .. request, deadline .. ' ' .. lease_ms)
  if place then
    redis.call('ZREM', queue_key, request)
  end
  lock.set_hold(request, deadline, lease_ms)
  lock.write()
  return GRANTED .. ' ' .. request .. ' ' .. now .. ' ' .. deadline .. ' '
    .. string.sub(summary, FENCE, FENCE_END) .. ' ' .. NO .. ' ' .. (place and YES or NO)
end

if not queue_key and mode ~= 'try' and deadline ~= FREE then
  return ELSEWHERE .. ' ' .. request .. ' ' .. now .. ' ' .. deadline
end
local queued, enqueued = queue_key and redis.call('ZCARD', queue_key) or 0, NO
if mode ~= 'try' and (deadline ~= FREE or queued > 0) then
  if not ticket_us or ticket_us == '' or not floor_us and ticket_us > now_us then
    ticket_us = now_us
  end
  -- A late first attempt, which brings no ticket, may have queued the request behind its place.
  if redis.call('ZADD', queue_key, 'LT', 'CH', ticket_us, request) == 1 then
    -- The sum is one too many if the request was only moved.
    queued, enqueued = queued + 1, YES
    if string.sub(summary, HAS_WAITERS, HAS_WAITERS) == NO then
      summary = string.sub(summary, UNTIL, HAS_WAITERS - 1) .. YES .. string.sub(summary, HOLDS - 1)
      redis.call('HSET', lock_key, 'hold', summary)
    end
  end
  if mode == 'poll' or queued == 1 then
    extend_ttl(queue_key, 0)
  end
  if queued == 1 and enqueued == YES and deadline ~= FREE then
    tell_wanted(summary, channel_prefix)
  end
  -- A client that calls is not absent.
  if string.sub(summary, HAS_WAITERS, HAS_WAITERS) == ABSENT then
    lock = lock or {}
    lock.absent = string.gsub(lock.absent or redis.call('HGET', lock_key, 'absent') or '', client .. ' ', '')
    if deadline ~= FREE then
      redis.call('HSET', lock_key, 'absent', lock.absent)
    end
  end
end

if deadline == FREE then
  local fence = next_fence(summary, now_us, floor_us)
  local more, _, grantee, grantee_ms, pushed = NO, nil, nil, nil, nil
  if queued > 0 then
    more, _, fence, grantee, deadline, grantee_ms, pushed =
      hand_over(lock_key, queue_key, channel_prefix, summary, fence, now, lock, request, lease_ms)
  end
  if more == YES then
    return INCOMPLETE .. ' ' .. request .. ' ' .. now .. ' 0'
  elseif not grantee then
    grantee, deadline, grantee_ms, pushed = request, string.format('%d', now + lease_ms), lease_ms, NO
  end
  summary = grant(lock_key, lock, queued > 0 and summary or nil, deadline, grantee_ms, pushed, fence, grantee)
  if grantee == request then
    local was_queued = queued > 0 and mode ~= 'try' and enqueued == NO
    return GRANTED .. ' ' .. request .. ' ' .. now .. ' ' .. deadline .. ' ' .. fence .. ' ' .. NO .. ' '
      .. (was_queued and YES or NO)
  end
end

local status, ticket, ahead = BUSY, '0', queued
if mode == 'try' then
  tell_wanted(summary, channel_prefix)
else
  if enqueued == NO then
    ticket_us = redis.call('ZSCORE', queue_key, request)
  end
  status, ticket, ahead = QUEUED, ticket_us, queued - 1
end
local own_grant = ' - 0 0 0'
if string.sub(summary, REQUEST, REQUEST_CLIENT_END) == client then
  local holder = string.sub(summary, REQUEST)
  local holder_until = lock and lock.holds and lock.holds[holder].deadline or deadline
  own_grant = ' ' .. holder .. ' ' .. string.sub(summary, FENCE, FENCE_END) .. ' ' .. holder_until .. ' '
    .. string.sub(summary, PUSHED, PUSHED)
end
return status .. ' ' .. request .. ' ' .. now .. ' ' .. deadline .. ' ' .. ticket .. ' '
  .. string.format('%d', ahead) .. ' ' .. enqueued .. own_grant
