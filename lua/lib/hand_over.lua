-- Gives a free lock to the first in the queue who can be reached, and tells that one alone.
--
-- ZPOPMIN is the first write: right whatever follows, allowed without memory, and where the script ends with
-- nothing done if no write can pass. PUBLISH comes next, and only then the writes, of which none can fail any more.
-- Who can't be reached stays removed, with its client's record, and comes back with its ticket when it asks again.
--
-- The `way` of publishing says how, and what the number of receivers tells:
--   'publish'   PUBLISH; with no receiver the client can't be reached
--   'spublish'  SPUBLISH, in a cluster from 7.0 on; likewise
--   'unproven'  PUBLISH, in an older cluster: receivers at its other nodes are not counted, so that the record alone decides

-- `mine` (or nil) is the caller's own request, queued too, which gets `mine_ms` instead of a claim window.
-- Returns 'nobody', 'handed' or 'more', and '1' if the server's ACL refused a push, else '0'.
local function hand_over(lock_key, queue_key, clients_key, channel, way, lock, now, mine, mine_ms)
  -- How many it removes at most before it answers `more`.
  local BOUND = 10000
  local unreachable, denied = nil, '0'
  for _ = 1, BOUND do
    local request = redis.call('ZPOPMIN', queue_key)[1]
    if lock.forget then
      lock.forget()
    end
    if not request then
      return 'nobody', denied
    end
    if request == mine then
      grant(lock_key, lock, request, (now + mine_ms) .. '', mine_ms, '0')
      return 'handed', denied
    end
    local client = client_of(request)
    if not (unreachable and unreachable[client]) then
      local alive_until = redis.pcall('ZSCORE', clients_key, client)
      if type(alive_until) == 'string' and alive_until > now then
        local grant_ms = string.sub(request, 34, 41) + 0
        local deadline = (now + grant_ms) .. ''
        local push = '1 ' .. lock.next_fence .. ' ' .. deadline .. ' ' .. request
        local heard
        if way == 'spublish' then
          heard = redis.pcall('SPUBLISH', channel .. client, push)
        else
          heard = redis.pcall('PUBLISH', channel .. client, push)
        end
        if type(heard) == 'table' then
          denied = '1'
        elseif heard > 0 or way == 'unproven' then
          grant(lock_key, lock, request, deadline, grant_ms .. '', '1')
          return 'handed', denied
        end
      end
      unreachable = unreachable or {}
      unreachable[client] = true
      redis.pcall('ZREM', clients_key, client)
    end
  end
  return 'more', denied
end
