-- `fence` is the fence of the new owner, or nil if the lock was released but stays taken. Then the first
-- request only knows when the lease was to end, and nobody releases the lock. So the client of the first
-- reachable request is told to ask, and its request stays in the queue.
--
-- `lock` is what `load_holds` returned (or nil). A client that is noted absent, or does not listen, is passed
-- over with all its requests. `own_request` (or nil) is the caller's own request, if that is queued too; it
-- gets `own_ms` instead of a claim window. Returns whether a bound was reached and whether the server's ACL
-- refused a push (YES or NO); the fence of the new owner; and, if a request was found, its name, the
-- deadline, the lease and whether it was pushed. The caller makes that request the holder, at once. `head` is
-- what the caller has taken out of the queue before: a request, or false if the queue is empty.
local function hand_over(lock_key, queue_key, channel_prefix, summary, fence, now, lock, own_request, own_ms,
  head)
  local denied, passed_over = NO, lock and lock.absent
  if not passed_over and string.sub(summary, HAS_WAITERS, HAS_WAITERS) == ABSENT then
    passed_over = redis.call('HGET', lock_key, 'absent')
  end
  for _ = 1, BOUND do
    local request = head
    if head ~= nil then
      head = nil
    elseif fence then
      request = redis.call('ZPOPMIN', queue_key)[1]
    else
      request = redis.call('ZRANGE', queue_key, '0', '0')[1]
    end
    if not request then
      return NO, denied, fence
    end
    if request == own_request then
      return NO, denied, fence, request, string.format('%d', now + own_ms), own_ms, NO
    end
    local client = string.sub(request, CLIENT, CLIENT_END)
    if not (passed_over and string.find(passed_over, client, 1, true)) then
      local pubsub_mode = string.sub(channel_prefix, PUBSUB_MODE, PUBSUB_MODE)
      local channel, listening = string.sub(channel_prefix, PREFIX) .. client, nil
      if pubsub_mode == PLAIN or pubsub_mode == SHARDED then
        listening = redis.pcall('PUBSUB', pubsub_mode == PLAIN and 'NUMSUB' or 'SHARDNUMSUB', channel)[2]
      end
      -- Where the number of subscribers cannot be asked for, every client is taken for one that listens.
      if listening ~= 0 then
        local claim_ms = string.sub(request, CLAIM_MS, CLAIM_MS_END)
        local deadline = string.format('%d', now + claim_ms)
        local push = KEPT_PUSH
        if fence then
          push = PUSH_VERSION .. ' ' .. fence .. ' ' .. deadline .. ' ' .. request
        end
        local sharded = pubsub_mode == SHARDED or pubsub_mode == MIGRATING
        if type(redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, push)) == 'number' then
          return NO, denied, fence, request, deadline, claim_ms, YES
        elseif not fence then
          return NO, YES
        end
        -- No two requests are ever told the same fence, whatever became of the message.
        denied, fence = YES, string.format('%d', fence + 1)
      end
      passed_over = (passed_over or '') .. client .. ' '
    end
    if not fence then
      redis.call('ZREM', queue_key, request)
    end
  end
  return YES, denied, fence
end
