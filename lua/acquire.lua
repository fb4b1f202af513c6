-- acquire: makes a request the holder, or queues it, or says how long the lock is held.
--
-- Called by every acquire call of a client. The same request calls it again after an unknown outcome, after a
-- reconnect, and as the poll that each waitlist sends from time to time.
--
-- Returns `status request now deadline` and the words given here. The status is NEWER_FORMAT or one of these:
local GRANTED = '1'         -- fence pushed was_queued; granted by this call, or (with the same fence) by an
                            -- earlier one
local QUEUED = '2'          -- ticket ahead enqueued own_grant fence deadline pushed
local BUSY = '3'            -- the same words, for a try, which is never queued
local EXPIRED_CALL = '4'    -- nothing done: the call came after its `not_after`
local INCOMPLETE = '5'      -- a bound was reached, with the lock free: call again
local ELSEWHERE = '6'       -- nothing done: the queue decides, and this is a call for the lock alone
local FULL = '7'            -- nothing done: this owner has as many holds as one may have
local CLOCK_BEHIND = '8'    -- nothing done: the floor is more than MAX_AHEAD_US ahead of the server's clock
-- `deadline` less `now` is the time until the lock can next be free. `ahead`: at most so many requests are
-- queued before this one. `was_queued`: 1 if this call granted the lock, and found the request in the queue.
-- `enqueued`: 1 if this call queued the request, or moved it forward to its ticket. `own_grant` and the words
-- after it: the holder's grant, if the holder is a request of the same client, which may not have heard of
-- it; else - 0 0 0.
--
-- Writes the lock when it changes hands, when its owner gets one more hold, when the first request is queued,
-- and when a client that was noted absent calls; the queue when it queues.
-- Publishes to the next request in the queue when it finds the lock free and another request is before this
-- one, and to the holder if that may retain the lock, when this request is the first in the queue, or a try.

-- KEYS[1]  hash: the lock
-- KEYS[2]  sorted set: the queue, request -> ticket (µs). A call for the lock alone leaves it out: there a
--          cluster's slot is being moved, and only one key at a time is sure to be found
local lock_key, queue_key = KEYS[1], KEYS[2]
-- ARGV[1]  string: the request
-- ARGV[2]  'try', 'ask' (queue if the lock is held) or 'poll' (the same, and prolong the queue's TTL)
-- ARGV[3]  ms, of 10 digits: the lease of a grant to this call
-- ARGV[4]  ms of the server's clock, of 13 digits: after it nothing new is done
-- ARGV[5]  string: the start of the clients' channels (lib/hand_over.lua)
-- ARGV[6]  µs of the server's clock: the ticket that the request had before; '' or nothing if it had none
-- ARGV[7]  only in a quorum, µs, of 16 digits: the floor, which is the least fence of a grant and takes the
--          place of the server's time. The ticket then counts as it is, even if it is later than now
local request, mode, lease_ms, not_after = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local channel_prefix, ticket_us, floor_us = ARGV[5], ARGV[6], ARGV[7]

local summary = redis.call('HGET', lock_key, 'hold') or ''
if summary >= NEWER then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
local least_us = now_us
if floor_us then
  least_us = floor_us
  if floor_us - now_us > MAX_AHEAD_US then
    return CLOCK_BEHIND .. ' ' .. request .. ' ' .. now .. ' 0'
  end
end

-- The fast path: the lock is free, nobody is queued before this request, and there is nothing to prolong.
-- That is most of the locks that nobody contends.
if summary < NOT_RELEASED and string.sub(summary, HAS_WAITERS, HAS_WAITERS) == NO
  and string.sub(summary, FENCE, FENCE_END) < least_us and now <= not_after
  and redis.call('PTTL', lock_key) >= lease_ms + RETENTION_MS then
  local deadline = string.format('%d', now + lease_ms)
  redis.call('HSET', lock_key, 'hold', deadline .. ' ' .. lease_ms .. ' ' .. NO .. ' ' .. NO .. ' ' .. ONE
    .. ' ' .. least_us .. ' ' .. request)
  return GRANTED .. ' ' .. request .. ' ' .. now .. ' ' .. deadline .. ' ' .. least_us .. ' ' .. NO .. ' '
    .. NO
end

-- The second fast path: the lock is held by one other request, others are queued, and all there is to do is
-- to queue this one.
if mode == 'ask' and string.sub(summary, HAS_WAITERS, HOLDS) == YES .. ' ' .. ONE and summary >= NOT_RELEASED
  and queue_key and not ticket_us and now <= not_after and string.sub(request, LAST) == ':'
  and string.sub(summary, MARK, MARK) ~= RETAINED then
  local deadline, holder = string.sub(summary, UNTIL, UNTIL_END), string.sub(summary, REQUEST)
  if deadline > now and deadline - now <= string.sub(summary, LEASE, LEASE_END) + 0 and holder ~= request
    and redis.call('ZADD', queue_key, 'NX', now_us, request) == 1 then
    local queued, own_grant = redis.call('ZCARD', queue_key), ' - 0 0 0'
    -- An empty queue has no key, whatever the summary says.
    if queued == 1 then
      redis.call('PEXPIRE', queue_key, string.format('%d', RETENTION_MS + SLACK_MS))
    end
    if string.sub(holder, CLIENT, CLIENT_END) == string.sub(request, CLIENT, CLIENT_END) then
      own_grant = ' ' .. holder .. ' ' .. string.sub(summary, FENCE, FENCE_END) .. ' ' .. deadline .. ' '
        .. string.sub(summary, PUSHED, PUSHED)
    end
    return QUEUED .. ' ' .. request .. ' ' .. now .. ' ' .. deadline .. ' ' .. now_us .. ' '
      .. string.format('%d', queued - 1) .. ' ' .. YES .. own_grant
  end
end
