-- inspect: says who holds the lock, and how many wait.
--
-- Called by a lock's `status`.
--
-- Returns `status request now deadline fence owner holds waiting client first`. `first` is the ticket (µs)
-- of the first request in the queue, or 0 if nobody is queued. The status is NEWER_FORMAT or one of these:
local HELD = '1'       -- until `deadline`, which is the latest of the holds' deadlines
local NOT_HELD = '2'   -- fence, owner, holds and client are 0, -, 0 and -
local ELSEWHERE = '3'  -- nothing known: somebody may be queued, and this is a call for the lock alone

-- Writes nothing except what every script does: it drops holds that are over.

-- KEYS[1]  hash: the lock
-- KEYS[2]  sorted set: the queue. A call for the lock alone leaves it out (acquire.lua)
local lock_key, queue_key = KEYS[1], KEYS[2]
-- ARGV[1]  string: the request, which only names the call
local request = ARGV[1]

local summary = redis.call('HGET', lock_key, 'hold') or ''
if summary >= NEWER then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
if not queue_key and string.sub(summary, HAS_WAITERS, HAS_WAITERS) >= YES then
  return ELSEWHERE .. ' ' .. request .. ' ' .. now .. ' 0'
end
local lock = load_holds(lock_key, summary, now, request)
local waiting = queue_key and redis.call('ZCARD', queue_key) or 0
local first = waiting > 0 and redis.call('ZRANGE', queue_key, '0', '0', 'WITHSCORES')[2] or '0'
if lock.count == 0 then
  return NOT_HELD .. ' ' .. request .. ' ' .. now .. ' 0 0 - 0 ' .. waiting .. ' - ' .. first
end
local owner = string.sub(lock.summary, REQUEST)
if string.sub(owner, LAST) ~= ':' then
  owner = string.sub(owner, OWNER)
end
return HELD .. ' ' .. request .. ' ' .. now .. ' ' .. lock.deadline .. ' '
  .. string.sub(summary, FENCE, FENCE_END) .. ' ' .. owner .. ' ' .. lock.count .. ' ' .. waiting
  .. ' ' .. string.sub(lock.summary, REQUEST, REQUEST_CLIENT_END) .. ' ' .. first
