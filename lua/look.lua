-- look: renews a hold of a quorum, raises its fence, and says whether an earlier request is queued.
--
-- In a quorum, a lock is held by holds on a majority of independent servers under one fence. Called for each
-- hold of a request that has no such majority yet, and for one that comes later than the majority. Its client
-- gives the hold up for an earlier request, and raises the fence if another hold of the request has a larger
-- one. A second call finds the hold by the fence to which the first one raised it.
--
-- Returns `status request now deadline` and the words given here. The status is NEWER_FORMAT or one of these:
local HELD = '1'          -- fence earlier; until `deadline`
local EXPIRED = '2'       -- not held any more: the lease ran out, and nobody has had the lock since
local TAKEN = '3'         -- not held any more: the lock has changed hands, or was released
local CLOCK_BEHIND = '4'  -- nothing done: the floor is more than MAX_AHEAD_US ahead of the server's clock
-- `earlier`: 1 if the first request in the queue has an earlier ticket than this one or, of equal tickets, a
-- client that comes first by its id. A request has another number on each server, so that would not do.
--
-- Writes the lock.

-- KEYS[1]  hash: the lock
-- KEYS[2]  sorted set: the queue, request -> ticket (µs)
local lock_key, queue_key = KEYS[1], KEYS[2]
-- ARGV[1]  string: the request
-- ARGV[2]  the fence
-- ARGV[3]  ms, of 10 digits: the lease
-- ARGV[4]  ms of the server's clock: the deadline is never later
-- ARGV[5]  µs, of 16 digits: the floor, to which a smaller fence is raised; the fence itself raises nothing
-- ARGV[6]  µs: the ticket of the request
local request, fence, lease_ms, cap_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local floor_us, ticket_us = ARGV[5], ARGV[6]

local summary = redis.call('HGET', lock_key, 'hold') or ''
if summary >= NEWER then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
if floor_us ~= fence and floor_us - now_us > MAX_AHEAD_US then
  return CLOCK_BEHIND .. ' ' .. request .. ' ' .. now .. ' 0'
end

-- Several holds keep their fence, because each is renewed and released by it. A quorum has none of them.
local last = string.sub(summary, FENCE, FENCE_END)
if last <= floor_us and (last == fence or last == floor_us)
  and string.sub(summary, HOLDS) == ONE .. ' ' .. last .. ' ' .. request then
  -- What follows writes this summary, unless the hold is over.
  summary = string.sub(summary, UNTIL, FENCE - 1) .. floor_us .. string.sub(summary, FENCE_END + 1)
  fence = floor_us
end

local earlier = NO
if string.sub(summary, HAS_WAITERS, HAS_WAITERS) >= YES then
  local first = redis.call('ZRANGE', queue_key, '0', '0', 'WITHSCORES')
  -- The queue can be empty all the same.
  if first[1] then
    local behind_us = ticket_us - first[2]
    if behind_us > 0 or behind_us == 0
      and string.sub(first[1], CLIENT, CLIENT_END) < string.sub(request, CLIENT, CLIENT_END) then
      earlier = YES
    end
  end
end
local more_words = ' ' .. fence .. ' ' .. earlier
