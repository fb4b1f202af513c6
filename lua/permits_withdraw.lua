-- permits_withdraw: withdraw (withdraw.lua) for a semaphore or a read/write lock, with the same arguments.
--
-- Returns `status request now deadline denied incomplete`, with a `deadline` of 0. The status is NEWER_FORMAT
-- or this one:
local WITHDRAWN = '1'
-- Writes the queue and the permits.
-- Publishes to requests in the queue for which there are permits.

-- KEYS[1], KEYS[2], KEYS[3]: as in permits_acquire.lua
local lock_key, queue_key, timers_key = KEYS[1], KEYS[2], KEYS[3]
-- ARGV[1], ARGV[2]: as in withdraw.lua
local requests, channel_prefix = ARGV[1], ARGV[2]

local all = {}
for request in string.gmatch(requests, '%S+') do
  all[#all + 1] = request
end
local request = all[1]
local permits = open(lock_key, queue_key, timers_key, request, channel_prefix)
if not permits then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
permits.queued = permits.queued - redis.call('ZREM', queue_key, unpack(all))
for _, withdrawn in ipairs(all) do
  local hold = permits.used > 0 and redis.call('HGET', lock_key, HOLD_FIELD .. withdrawn)
  if hold then
    drop(permits, withdrawn, hold)
  end
end
-- An earlier call may have removed these requests, and then stopped at its bound.
local more, denied = hand_over(permits, true)
write(permits)
return WITHDRAWN .. ' ' .. request .. ' ' .. now .. ' 0 ' .. denied .. ' ' .. more
