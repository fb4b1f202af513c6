-- permits_withdraw: withdraw (withdraw.lua) for a semaphore or a read/write lock, with the same arguments.
--
-- Returns `status request now deadline denied incomplete`, with a `deadline` of 0. The status is NEWER_FORMAT
-- or this one:
local WITHDRAWN = '1'
-- Writes the queue and the permits; the clients as it hands over.
-- Publishes to requests in the queue for which there are permits.

-- KEYS[1], KEYS[2], KEYS[3], KEYS[4]: as in permits_acquire.lua
local lock_key, queue_key, clients_key, timers_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- ARGV[1], ARGV[2]: as in withdraw.lua
local requests, channel_prefix = ARGV[1], ARGV[2]

local all = {}
for request in string.gmatch(requests, '%S+') do
  all[#all + 1] = request
end
local request = all[1]
if not open(lock_key, queue_key, clients_key, timers_key, request) then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
queued = queued - redis.call('ZREM', queue_key, unpack(all))
for _, withdrawn in ipairs(all) do
  local hold = used > 0 and redis.call('HGET', lock_key, HOLD_FIELD .. withdrawn)
  if hold then
    drop(withdrawn, hold)
  end
end
-- An earlier call may have removed these requests, and then stopped at its bound.
local more, denied = hand_over(queue_key, channel_prefix, true)
return WITHDRAWN .. ' ' .. request .. ' ' .. now .. ' 0 ' .. denied .. ' ' .. more
