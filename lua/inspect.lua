-- inspect: says who holds the lock, and how many wait.
--
-- Called by a lock's `status`. It declares the lock alone, like `renew`.
--
-- Returns `status request now deadline fence owner holds waiting`. Times are in ms of the server's clock. The
-- status is NEWER_FORMAT or one of these:
local HELD = '1'      -- until `deadline`, which is the latest of the holds' deadlines
local NOT_HELD = '2'  -- fence, owner and holds are 0, - and 0

-- Writes nothing except what every script does: it drops holds that are over.

-- KEYS[1]  hash: the lock
local lock_key = KEYS[1]
-- ARGV[1]  string: the request, which only names the call
-- ARGV[2]  string: the key of the queue
local request, queue_key = ARGV[1], ARGV[2]

local summary = redis.call('HGET', lock_key, 'hold') or ''
if summary >= NEWER then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
local lock = load_holds(lock_key, nil, summary, now, request)
local waiting = redis.call('ZCARD', queue_key)
if lock.count == 0 then
  return NOT_HELD .. ' ' .. request .. ' ' .. now .. ' 0 0 - 0 ' .. waiting
end
local owner = string.sub(lock.summary, REQUEST)
if string.sub(owner, LAST) ~= ':' then
  owner = string.sub(owner, OWNER)
end
return HELD .. ' ' .. request .. ' ' .. now .. ' ' .. lock.deadline .. ' '
  .. string.sub(summary, FENCE, FENCE_END) .. ' ' .. owner .. ' ' .. lock.count .. ' ' .. waiting
