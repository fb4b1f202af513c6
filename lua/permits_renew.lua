-- permits_renew: renew (renew.lua) for a hold of a semaphore or a read/write lock, with the same arguments
-- and replies. It also keeps the timers, which would expire while there are no other calls.
local HELD, TAKEN = '1', '3'  -- TAKEN: there is no such hold, because it ran out, or was released

-- KEYS[1]  hash: the permits
-- KEYS[2]  sorted set: the timers. A call for the hash alone leaves out this key, so the migration of a
--          cluster's slot never stops a renewal (acquire.lua)
local lock_key, timers_key = KEYS[1], KEYS[2]
-- ARGV[1], ARGV[2], ARGV[3], ARGV[4]: as in renew.lua
local request, its_fence, lease_ms, cap_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local header = redis.call('HGET', lock_key, 'permits') or ''
if header >= NEWER then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
local hold = redis.call('HGET', lock_key, HOLD_FIELD .. request) or ''
local deadline, last_ms = string.sub(hold, UNTIL, UNTIL_END), string.sub(hold, LEASE, LEASE_END)
if deadline <= now or string.sub(hold, HOLD_FENCE, HOLD_FENCE_END) ~= its_fence then
  return TAKEN .. ' ' .. request .. ' ' .. now .. ' 0'
end
if deadline - now > last_ms + 0 then
  deadline = string.format('%d', now + last_ms)
end
local wanted = string.format('%d', math.min(now + lease_ms, cap_ms))
if wanted <= deadline then
  wanted, lease_ms = deadline, last_ms
end
-- PEXPIRE comes first: an out-of-memory server lets it pass, and then whatever follows.
local ttl_ms = string.format('%d', math.max(redis.call('PTTL', lock_key), wanted - now + RETENTION_MS))
redis.call('PEXPIRE', lock_key, ttl_ms)
if timers_key then
  redis.call('PEXPIRE', timers_key, ttl_ms)
end
local seen = now < string.sub(header, SEEN, SEEN_END) and STALE or now
redis.call('HSET', lock_key, 'permits', seen .. string.sub(header, SEEN_END + 1), HOLD_FIELD .. request,
  wanted .. ' ' .. lease_ms .. ' ' .. NO .. string.sub(hold, PUSHED + 1))
return HELD .. ' ' .. request .. ' ' .. now .. ' ' .. wanted
