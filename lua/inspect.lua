-- inspect: says who holds the lock, and how many wait.
--
-- Called by a lock's `status`. It declares the lock alone, like `renew`.
--
-- Returns `status request now deadline fence owner holds waiting`, times in ms of the server's clock:
--   1 held until `deadline`, which is the latest of the holds' deadlines
--   2 free; fence, owner and holds are 0, - and 0
--   0 newer format
--
-- Writes nothing except what every script does: it drops holds that are over.

-- KEYS[1]  hash: the lock
local lock_key = KEYS[1]
-- ARGV[1]  string: the request, which only names the call
-- ARGV[2]  string: the key of the queue
local request, queue_key = ARGV[1], ARGV[2]

local summary = redis.call('HGET', lock_key, 'hold') or ''
if summary >= NEWER then
  return '0 ' .. request .. ' ' .. now .. ' 0'
end
local lock = load_holds(lock_key, nil, summary, now, request)
local waiting = redis.call('ZCARD', queue_key)
if lock.count == 0 then
  return '2 ' .. request .. ' ' .. now .. ' 0 0 - 0 ' .. waiting
end
local owner = string.sub(lock.summary, 47)
if string.sub(owner, -1) ~= ':' then
  owner = string.sub(owner, -32)
end
return '1 ' .. request .. ' ' .. now .. ' ' .. lock.deadline .. ' ' .. string.sub(summary, 30, 45) .. ' ' .. owner .. ' '
  .. lock.count .. ' ' .. waiting
