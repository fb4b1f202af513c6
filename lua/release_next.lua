-- release, when the server's clock counts. The header of release.lua explains the arguments and the reply.

if summary >= NEWER then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end

if floor_us == '' then
  floor_us = nil
elseif floor_us and floor_us - now_us > MAX_AHEAD_US then
  return CLOCK_BEHIND .. ' ' .. request .. ' ' .. now .. ' 0 0 0'
end
local was_until, stays_until = string.sub(summary, UNTIL, UNTIL_END), nil
if what == 'keep' then
  what = 'grant'
  -- If the time of 'keep' is over, or there is no such hold, it is a release like any other.
  local deadline = string.format('%d', math.min(now + most_ms, latest))
  if was_until > now and deadline > now then
    -- No call names the request that keeps the lock taken, and it has no owner.
    local kept = string.sub(request, CLIENT, CLAIM_MS_END) .. KEPT .. string.match(request, '%d+:', NUMBER)
    local hold = string.sub(summary, HOLDS)
    if hold == ONE .. ' ' .. fence .. ' ' .. kept then
      -- The call before this one may have been incomplete.
      stays_until = was_until
    elseif hold == ONE .. ' ' .. fence .. ' ' .. request then
      local lease_ms = string.format('%010d', deadline - now)
      -- PEXPIRE comes first: an out-of-memory server lets it pass, and then whatever follows.
      redis.call('PEXPIRE', lock_key, string.format('%d', lease_ms + RETENTION_MS))
      redis.call('HSET', lock_key, 'hold', deadline .. ' ' .. lease_ms .. ' ' .. NO
        .. string.sub(summary, PUSHED + 1, HOLDS) .. ' ' .. fence .. ' ' .. kept)
      stays_until = deadline
    end
    if stays_until and (not queue_key or string.sub(summary, HAS_WAITERS, HAS_WAITERS) == NO) then
      return RELEASED .. ' ' .. request .. ' ' .. now .. ' ' .. stays_until .. ' 0 0'
    end
  end
end
-- The time does not matter here either.
local is_only = summary >= NOT_RELEASED
  and string.sub(summary, HOLDS) == ONE .. ' ' .. fence .. ' ' .. request
-- The second fast path: the first request in the queue gets the lock, as by `hand_over`. If that is not
-- possible, the rest of the script goes on with this `head`, or with `false` for an empty queue.
local head
if is_only and not stays_until and queue_key and not floor_us
  and string.sub(summary, HAS_WAITERS, HAS_WAITERS) == YES then
  head = redis.call('ZPOPMIN', queue_key)[1] or false
  local pubsub_mode = string.sub(channel_prefix, PUBSUB_MODE, PUBSUB_MODE)
  if head and (pubsub_mode == PLAIN or pubsub_mode == SHARDED) then
    local sharded = pubsub_mode == SHARDED
    local channel = string.sub(channel_prefix, PREFIX) .. string.sub(head, CLIENT, CLIENT_END)
    if redis.pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel)[2] ~= 0 then
      local claim_ms, used = string.sub(head, CLAIM_MS, CLAIM_MS_END), last_fence or fence
      local next_fence = used >= now_us and string.format('%d', used + 1) or now_us
      local deadline = string.format('%d', now + claim_ms)
      local push = PUSH_VERSION .. ' ' .. next_fence .. ' ' .. deadline .. ' ' .. head
      if type(redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, push)) == 'number' then
        redis.call('HSET', lock_key, 'hold', deadline .. ' ' .. claim_ms .. ' ' .. YES .. ' ' .. YES .. ' '
          .. ONE .. ' ' .. next_fence .. ' ' .. head)
        if redis.call('PTTL', lock_key) < claim_ms + RETENTION_MS then
          redis.call('PEXPIRE', lock_key, string.format('%d', claim_ms + RETENTION_MS + SLACK_MS))
        end
        return RELEASED .. ' ' .. request .. ' ' .. now .. ' ' .. deadline .. ' 0 0'
      end
    end
  end
end
