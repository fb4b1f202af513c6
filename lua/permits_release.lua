-- permits_release: release (release.lua) for a semaphore or a read/write lock, with the same arguments. It
-- can also take some of the permits of a hold, which goes on with the rest.
--
-- Returns `status request now deadline denied incomplete searched`, with a `deadline` of 0. The status is
-- NEWER_FORMAT or one of these:
local RELEASED, TAKEN = '1', '4'  -- TAKEN: there is no such hold, because it ran out, or was released already
-- `searched` is a place other than START if 'force' has not found the hold yet: go on from there.
--
-- Writes the permits; the queue as it hands over.
-- Publishes to requests in the queue for which there are permits.

-- KEYS[1], KEYS[2], KEYS[3]: as in permits_acquire.lua
local lock_key, queue_key, timers_key = KEYS[1], KEYS[2], KEYS[3]
-- ARGV[1]  string: the request
-- ARGV[2]  'grant', 'keep' or 'force', as in release.lua, or 'shrink'
-- ARGV[3], ARGV[4]: as there. No two holds have the same fence
-- ARGV[5], ARGV[6]: as there, and of no use here: there is no floor, and a hold serves one turn
-- ARGV[7]  'keep': as there. 'shrink': of 5 digits: how many permits the hold goes on with. 'force': where
--          the search goes on (or none: from the start)
-- ARGV[8]  'keep': as there
local request, what, its_fence, channel_prefix = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local _, _, extra, latest = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local permits = open(lock_key, queue_key, timers_key, request, channel_prefix)
if not permits then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
local holder, searched, found = request, START, nil
if what == 'force' then
  -- Only people name a hold by its fence alone. There may be very many holds.
  searched, found = unpack(redis.call('HSCAN', lock_key, extra or START, 'COUNT', PART))
  for i = 1, #found, 2 do
    if string.sub(found[i], KIND, KIND_END) == HOLD_FIELD
      and string.sub(found[i + 1], HOLD_FENCE, HOLD_FENCE_END) == its_fence then
      holder, searched = string.sub(found[i], HOLDER), START
    end
  end
end
-- No call names the request that keeps permits taken.
local kept = string.sub(holder, CLIENT, CLAIM_MS_END) .. KEPT .. string.sub(holder, WEIGHT)
local hold = redis.call('HGET', lock_key, HOLD_FIELD .. holder) or ''
local kept_hold = what == 'keep' and redis.call('HGET', lock_key, HOLD_FIELD .. kept) or ''
local weight = string.sub(hold, HOLD_WEIGHT, HOLD_WEIGHT_END)
local status, keeps = RELEASED, false
if string.sub(hold, HOLD_FENCE, HOLD_FENCE_END) ~= its_fence then
  -- The call before this one may have been incomplete.
  keeps = string.sub(kept_hold, HOLD_FENCE, HOLD_FENCE_END) == its_fence
  status = keeps and RELEASED or TAKEN
elseif what ~= 'shrink' then
  local ms = what == 'keep' and math.min(extra, latest - now) or 0
  keeps = ms > 0
  if keeps then
    if kept_hold ~= '' then
      drop(permits, kept, kept_hold)
    end
    redis.call('HDEL', lock_key, HOLD_FIELD .. holder)
    local deadline = string.format('%d', now + ms)
    permits.holds[holder] = false
    permits.holds[kept] = deadline .. string.format(' %010d ', ms) .. NO .. string.sub(hold, PUSHED + 1)
    permits.kept_until = deadline > permits.kept_until and deadline or permits.kept_until
  else
    drop(permits, holder, hold)
  end
elseif extra < weight then
  -- HDEL comes first: an out-of-memory server lets it pass, and then whatever follows.
  redis.call('HDEL', lock_key, HOLD_FIELD .. holder)
  redis.call('HSET', lock_key, HOLD_FIELD .. holder, string.sub(hold, UNTIL, HOLD_FENCE_END) .. ' ' .. extra
    .. ' ' .. NO_SLOT)
  permits.used, permits.is_changed = permits.used - weight + extra, true
end
local more, denied = hand_over(permits, keeps)
write(permits)
return status .. ' ' .. request .. ' ' .. now .. ' 0 ' .. denied .. ' ' .. more .. ' ' .. searched
