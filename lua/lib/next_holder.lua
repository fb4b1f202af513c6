-- `fence` is the fence of the new owner, or nil if the lock was released but stays taken. Then the first
-- request only knows when the lease was to end, and nobody releases the lock. So the client of the first
-- reachable request is told to ask, and its request stays in the queue.
--
-- `lock` is what `load_holds` returned (or nil). `own_request` (or nil) is the caller's own request, if that
-- is queued too; it gets `own_ms` instead of a claim window. Returns whether a bound was reached and whether
-- the server's ACL refused a push (YES or NO); the fence of the new owner; and, if a request was found, its
-- name, the deadline, the lease and whether it was pushed. The caller makes that request the holder, at once.
local function hand_over(queue_key, clients_key, channel_prefix, fence, now, lock, own_request, own_ms)
  local unreachable, denied = nil, NO
  for _ = 1, BOUND do
    local request
    if fence then
      request = redis.call('ZPOPMIN', queue_key)[1]
    else
      request = redis.call('ZRANGE', queue_key, '0', '0')[1]
    end
    if lock and lock.drop_client then
      lock.drop_client()
    end
    if not request then
      return NO, denied, fence
    end
    if request == own_request then
      return NO, denied, fence, request, string.format('%d', now + own_ms), own_ms, NO
    end
    local client = string.sub(request, CLIENT, CLIENT_END)
    if not (unreachable and unreachable[client]) then
      local alive_until = redis.pcall('ZSCORE', clients_key, client)
      if type(alive_until) == 'string' and alive_until > now then
        local pubsub_mode = string.sub(channel_prefix, PUBSUB_MODE, PUBSUB_MODE)
        local channel, listening = string.sub(channel_prefix, PREFIX) .. client, nil
        if pubsub_mode == PLAIN then
          listening = redis.pcall('PUBSUB', 'NUMSUB', channel)[2]
        elseif pubsub_mode == SHARDED then
          listening = redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)[2]
        end
        -- Where the number of subscribers cannot be asked for, the presence record alone decides.
        if listening ~= 0 then
          local claim_ms = string.sub(request, CLAIM_MS, CLAIM_MS_END)
          local deadline = string.format('%d', now + claim_ms)
          local push = KEPT_PUSH
          if fence then
            push = PUSH_VERSION .. ' ' .. fence .. ' ' .. deadline .. ' ' .. request
          end
          local told
          if pubsub_mode == SHARDED or pubsub_mode == MIGRATING then
            told = redis.pcall('SPUBLISH', channel, push)
          else
            told = redis.pcall('PUBLISH', channel, push)
          end
          if type(told) == 'number' then
            return NO, denied, fence, request, deadline, claim_ms, YES
          elseif not fence then
            return NO, YES
          end
          -- No two requests are ever told the same fence, whatever became of the message.
          denied, fence = YES, string.format('%d', fence + 1)
        end
      end
      unreachable = unreachable or {}
      unreachable[client] = true
      redis.pcall('ZREM', clients_key, client)
    end
    if not fence then
      redis.call('ZREM', queue_key, request)
    end
  end
  return YES, denied, fence
end
