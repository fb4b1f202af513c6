-- Finds who gets a free lock, the first in the queue who can be reached, and tells that one alone.
--
-- ZPOPMIN is the first write: right whatever follows, allowed without memory, and where the script ends with
-- nothing done if no write can pass. PUBLISH comes next, and only then the writes, of which none can fail any more.
-- Who can't be reached stays removed, with its client's record, and comes back with its ticket when it asks again.
--
-- `address` is what the clients' unlock channels begin with, after a letter for how to publish and what the number of receivers
-- tells:
--   p   PUBLISH; with no receiver the client can't be reached
--   s   SPUBLISH, in a cluster from 7.0 on; likewise
--   u   PUBLISH, in an older cluster: receivers at its other nodes are not counted, so that the record alone decides
--   m   SPUBLISH, where the slot has moved to lately: its subscribers are still on their way; likewise

-- `fence` is what the new owner gets, `lock` what `settle` returned (or nil), `mine` (or nil) the caller's own request, queued
-- too, which gets `mine_ms` instead of a claim window.
-- Returns '1' if a bound was reached, else '0'; '1' if the server's ACL refused a push, else '0'; and of the one found the
-- request, the deadline, the lease and whether it was pushed. The caller makes it the holder, at once.
local function hand_over(queue_key, clients_key, address, fence, now, lock, mine, mine_ms)
  -- How many it removes at most before it answers `more`.
  local BOUND = 10000
  local unreachable, denied = nil, '0'
  for _ = 1, BOUND do
    local request = redis.call('ZPOPMIN', queue_key)[1]
    if lock and lock.forget then
      lock.forget()
    end
    if not request then
      return '0', denied
    end
    if request == mine then
      return '0', denied, request, string.format('%d', now + mine_ms), mine_ms, '0'
    end
    local client = string.sub(request, 1, 32)
    if not (unreachable and unreachable[client]) then
      local alive_until = redis.pcall('ZSCORE', clients_key, client)
      if type(alive_until) == 'string' and alive_until > now then
        local grant_ms, way = string.sub(request, 34, 41), string.sub(address, 1, 1)
        local deadline = string.format('%d', now + grant_ms)
        local channel = string.sub(address, 2) .. client
        local push = '1 ' .. fence .. ' ' .. deadline .. ' ' .. request
        local heard
        if way == 's' or way == 'm' then
          heard = redis.pcall('SPUBLISH', channel, push)
        else
          heard = redis.pcall('PUBLISH', channel, push)
        end
        if type(heard) == 'table' then
          denied = '1'
        elseif heard > 0 or way == 'u' or way == 'm' then
          return '0', denied, request, deadline, grant_ms, '1'
        end
      end
      unreachable = unreachable or {}
      unreachable[client] = true
      redis.pcall('ZREM', clients_key, client)
    end
  end
  return '1', denied
end
