-- Finds the new holder of a free lock, which is the first reachable request in the queue, and tells that
-- request's client alone.
--
-- ZPOPMIN is the first write. It is right whatever follows, the server allows it without memory, and if no
-- write can pass, the script ends there with nothing done. PUBLISH comes next, and only then the writes, of
-- which none can fail any more. A client that cannot be reached loses its presence record. Its request stays
-- removed, and comes back with its ticket when the client asks again.
--
-- The script asks whether a client listens before it sends the push. The number of receivers that PUBLISH
-- returns would come too late: a message also reaches subscribers at the server's replicas, which are not
-- counted. The lock would pass on to the next request, although the first one has heard that it holds the
-- lock.
--
-- `channel_prefix` is the start of the clients' unlock channels. A letter stands before it, and says how to
-- publish and whether the subscribers are counted:
--   p   PUBLISH; a client without a subscriber here cannot be reached
--   s   SPUBLISH, in a cluster from 7.0 on; likewise
--   u   PUBLISH, in an older cluster: subscribers at its other nodes are not counted, so the presence record
--       alone decides
--   m   SPUBLISH, where the slot has moved to lately: its subscribers are still on their way; likewise

-- A call removes at most so many requests, which takes some 5 ms, before it answers incomplete.
local BOUND = 500

-- `fence` is the fence of the new owner. `lock` is what `load_holds` returned (or nil). `own_request` (or
-- nil) is the caller's own request, if that is queued too; it gets `own_ms` instead of a claim window.
-- Returns '1' if a bound was reached, else '0'; '1' if the server's ACL refused a push, else '0'; the fence
-- of the new owner; and, if a request was found, its name, the deadline, the lease and whether it was pushed.
-- The caller makes that request the holder, at once.
local function hand_over(queue_key, clients_key, channel_prefix, fence, now, lock, own_request, own_ms)
  local unreachable, denied = nil, '0'
  for _ = 1, BOUND do
    local request = redis.call('ZPOPMIN', queue_key)[1]
    if lock and lock.drop_client then
      lock.drop_client()
    end
    if not request then
      return '0', denied, fence
    end
    if request == own_request then
      return '0', denied, fence, request, string.format('%d', now + own_ms), own_ms, '0'
    end
    local client = string.sub(request, 1, 32)
    if not (unreachable and unreachable[client]) then
      local alive_until = redis.pcall('ZSCORE', clients_key, client)
      if type(alive_until) == 'string' and alive_until > now then
        local pubsub_mode, channel, listening = string.sub(channel_prefix, 1, 1), string.sub(channel_prefix, 2) .. client, nil
        if pubsub_mode == 'p' then
          listening = redis.pcall('PUBSUB', 'NUMSUB', channel)[2]
        elseif pubsub_mode == 's' then
          listening = redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)[2]
        end
        -- Where the number of subscribers cannot be asked for, the presence record alone decides.
        if listening ~= 0 then
          local grant_ms = string.sub(request, 34, 41)
          local deadline = string.format('%d', now + grant_ms)
          local push = '1 ' .. fence .. ' ' .. deadline .. ' ' .. request
          local told
          if pubsub_mode == 's' or pubsub_mode == 'm' then
            told = redis.pcall('SPUBLISH', channel, push)
          else
            told = redis.pcall('PUBLISH', channel, push)
          end
          if type(told) == 'number' then
            return '0', denied, fence, request, deadline, grant_ms, '1'
          end
          -- No two requests are ever told the same fence, whatever became of the message.
          denied, fence = '1', string.format('%d', fence + 1)
        end
      end
      unreachable = unreachable or {}
      unreachable[client] = true
      redis.pcall('ZREM', clients_key, client)
    end
  end
  return '1', denied, fence
end
