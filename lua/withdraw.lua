-- withdraw: removes the queue entries and the holds of requests that will not be used again, and hands the
-- lock over if one of them was the last hold.
--
-- Called in the background for requests that were cancelled, timed out, or granted too late. A second call
-- changes nothing.
--
-- Returns `status request now deadline denied incomplete`, for the first of the requests. The status is
-- NEWER_FORMAT or one of these:
local WITHDRAWN = '1'
local ELSEWHERE = '5'     -- nothing done: somebody may be queued, and this is a call for the lock alone
local CLOCK_BEHIND = '6'  -- nothing done: the floor is more than MAX_AHEAD_US ahead of the server's clock
-- `denied`: 1 if the ACL refused a push. `incomplete`: 1 if a bound was reached before anybody was told: call
-- again.
--
-- Writes the queue, and the lock when a hold ends.
-- Publishes to the next request in the queue.

-- KEYS[1]  hash: the lock
-- KEYS[2]  sorted set: the queue. A call for the lock alone leaves it out (acquire.lua)
local lock_key, queue_key = KEYS[1], KEYS[2]
-- ARGV[1]  string: the requests, of one client, with a space between two; 250 at most
-- ARGV[2]  string: the start of the clients' channels (lib/hand_over.lua)
-- ARGV[3]  only in a quorum, µs, of 16 digits: the floor, as for a release (release.lua). It is larger than
--          all fences that holds of these requests have used
local requests, channel_prefix, floor_us = ARGV[1], ARGV[2], ARGV[3]

local all = {}
for request in string.gmatch(requests, '%S+') do
  all[#all + 1] = request
end
local request, summary = all[1], redis.call('HGET', lock_key, 'hold') or ''
if summary >= NEWER then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
if floor_us and floor_us - now_us > MAX_AHEAD_US then
  return CLOCK_BEHIND .. ' ' .. request .. ' ' .. now .. ' 0 0 0'
end
if not queue_key and string.sub(summary, HAS_WAITERS, HAS_WAITERS) >= YES then
  return ELSEWHERE .. ' ' .. request .. ' ' .. now .. ' 0 0 0'
end

local status, was_until, last_fence, head = WITHDRAWN, string.sub(summary, UNTIL, UNTIL_END), nil, nil
local lock = load_holds(lock_key, summary, now, request)
summary = lock.summary
local was_held, dropped = lock.count > 0, false
if queue_key then
  redis.call('ZREM', queue_key, unpack(all))
end
local only = was_held and not lock.holds and string.sub(summary, REQUEST)
for _, withdrawn in ipairs(all) do
  if withdrawn == only or lock.holds and lock.holds[withdrawn] then
    lock.drop(withdrawn)
    dropped = true
  end
end
if lock.count > 0 then
  if dropped then
    lock.write()
  end
  local more, denied = NO, NO
  -- Another request may be the first now. Its client only knows when the lease was to end. An earlier call
  -- may have removed these requests, and then stopped at its bound.
  if queue_key and string.sub(summary, MARK, MARK) == KEPT then
    more, denied = hand_over(lock_key, queue_key, channel_prefix, summary, nil, now, lock)
  end
  return status .. ' ' .. request .. ' ' .. now .. ' ' .. lock.deadline .. ' ' .. denied .. ' ' .. more
end
if dropped then
  -- No guard has had that hold. But in a quorum it may have been a vote. The floor is larger than every fence
  -- that was used, which is remembered, in case nobody is queued.
  last_fence = string.sub(summary, FENCE, FENCE_END)
  if floor_us and floor_us > last_fence then
    last_fence = string.format('%d', floor_us - 1)
  end
end
