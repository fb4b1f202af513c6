-- How requests in the queue get permits. The effects come in this order: reads; ZREM; PUBLISH; then what
-- `write` writes, of which nothing can fail any more.

-- How many requests are read from the queue at once.
local CHUNK = 64

-- Takes permits for a request. `write` writes its hold. Returns the deadline, the fence and the slot.
local function take(permits, request, ms, pushed)
  local weight, slots, slot = string.sub(request, WEIGHT, WEIGHT_END), permits.slots, NO_SLOT
  if weight == SINGLE and string.sub(request, CAPACITY, CAPACITY_END) <= MOST_SLOTS then
    local place = string.find(slots, NO, FIRST, true) or #slots + 1
    permits.slots = string.sub(slots, FIRST, place - 1) .. YES .. string.sub(slots, place + 1)
    slot = string.format('%d', place - 1)
  end
  local deadline = string.format('%d', now + ms)
  local fence = permits.fence >= now_us and string.format('%d', permits.fence + 1) or now_us
  permits.used, permits.fence = permits.used + weight, fence
  permits.holds[request] = deadline .. ' ' .. ms .. ' ' .. pushed .. ' ' .. fence .. ' ' .. weight .. ' '
    .. slot
  return deadline, fence, slot
end

-- Returns whether the ACL allowed it.
local function publish(permits, client, message)
  local pubsub_mode = string.sub(permits.channel_prefix, PUBSUB_MODE, PUBSUB_MODE)
  local command = (pubsub_mode == SHARDED or pubsub_mode == MIGRATING) and 'SPUBLISH' or 'PUBLISH'
  return type(redis.pcall(command, string.sub(permits.channel_prefix, PREFIX) .. client, message)) == 'number'
end

local function is_reachable(permits, reachable, client)
  if reachable[client] == nil then
    local pubsub_mode = string.sub(permits.channel_prefix, PUBSUB_MODE, PUBSUB_MODE)
    local channel, listening = string.sub(permits.channel_prefix, PREFIX) .. client, nil
    if pubsub_mode == PLAIN or pubsub_mode == SHARDED then
      listening = redis.pcall('PUBSUB', pubsub_mode == PLAIN and 'NUMSUB' or 'SHARDNUMSUB', channel)[2]
    end
    -- Where the number of subscribers cannot be asked for, every client is taken for one that listens.
    reachable[client] = listening ~= 0 and not string.find(permits.absent, client, 1, true)
  end
  return reachable[client]
end

-- How many permits were granted over a request while it was the first in the queue.
local function overtaken_by(permits, request)
  local noted = permits.overtaken or redis.call('HGET', permits.lock_key, OVERTAKEN) or ''
  local granted, overtaken = string.match(noted, '(%d+) (%S+)')
  return overtaken == request and granted or 0
end

-- Takes permits for requests from the head of the queue on, and removes these, until it comes to the first
-- for which there are too few. That one waits, unless its client cannot be reached: then it would only keep
-- the others out. Returns the requests whose clients must be told.
--
-- It steps over full requests, if it knows of a larger capacity (lua/README.md, rule 1 of permits). Otherwise
-- it would read the whole queue in vain where all callers say the same. A request that it misses gets its
-- permits when its client polls.
local function give_out(permits, progress)
  local granted, removed, stepped, own_ms = {}, {}, 0, progress.own_ms
  local heads, read, capacity = {}, 0, 0
  -- The largest capacity that is known, or less.
  local largest = own_ms and string.sub(permits.request, CAPACITY, CAPACITY_END) or 0
  largest = math.max(permits.used_before, largest)
  progress.first = false
  for position = 1, permits.queued do
    if not heads[position - read] then
      -- As many more as may get permits.
      local more = progress.first and CHUNK or math.max(1, math.min(CHUNK, capacity - permits.used))
      read = position - 1
      heads = redis.call('ZRANGE', permits.queue_key, read .. '', read + more - 1 .. '')
    end
    local head = heads[position - read]
    local client, weight = string.sub(head, CLIENT, CLIENT_END), string.sub(head, WEIGHT, WEIGHT_END)
    capacity = string.sub(head, CAPACITY, CAPACITY_END)
    local is_own, first = own_ms and head == permits.request, progress.first
    local free = capacity - permits.used
    local steps = free <= 0 and largest - capacity > 0
    -- Of several full requests, only the first must be reachable.
    local is_asked = free > 0 or not first and (steps or progress.is_new and permits.kept_until > now)
    local is_waiting = is_own or not is_asked or is_reachable(permits, progress.reachable, client)
    if steps and is_waiting and stepped < CHUNK then
      progress.first, stepped = first or head, stepped + 1
    else
      local granted_over = first and is_waiting and overtaken_by(permits, first) + weight or 0
      if is_waiting and (weight - free > 0 or granted_over > capacity + 0) then
        progress.first = first or head
        break
      elseif progress.removed == BOUND then
        progress.is_bounded = true
        break
      end
      removed[#removed + 1] = head
      progress.removed, progress.is_new = progress.removed + 1, true
      if granted_over > 0 then
        permits.overtaken = granted_over .. ' ' .. first
      end
      if is_own then
        take(permits, head, own_ms, NO)
      elseif is_waiting then
        local ms = string.sub(head, CLAIM_MS, CLAIM_MS_END)
        local deadline, fence, slot = take(permits, head, ms, YES)
        local words = fence .. ' ' .. deadline .. ' ' .. head .. ' ' .. slot
        granted[#granted + 1] = {client = client, request = head, words = words}
      end
    end
  end
  if removed[1] then
    redis.call('ZREM', permits.queue_key, unpack(removed))
    permits.queued = permits.queued - #removed
  end
  return granted
end

-- Tells each client of all its grants at once. If the ACL refuses that, they are void. Returns whether some
-- are.
local function tell(permits, progress, granted)
  local clients, words, is_refused = {}, {}, false
  for _, grant in ipairs(granted) do
    local client = grant.client
    if not words[client] then
      clients[#clients + 1], words[client] = client, {PUSH_VERSION}
    end
    table.insert(words[client], grant.words)
  end
  for _, client in ipairs(clients) do
    if not publish(permits, client, table.concat(words[client], ' ')) then
      progress.reachable[client], progress.denied, is_refused = false, YES, true
    end
  end
  for _, grant in ipairs(is_refused and granted or {}) do
    if not progress.reachable[grant.client] then
      -- Its fence is not given out again. A hold of the same request that was lost may have left a timer.
      give_back(permits, grant.request, permits.holds[grant.request])
    end
  end
  return is_refused
end

-- Gives out as many permits as there are. Those of void grants go to the next requests. With `own_ms`, the
-- caller's own request gets that lease, if it is queued, and no message. `is_new` says that another request
-- may be the first now, or that more permits stay taken, of which the client of the first must be told.
-- Returns whether a bound was reached, and whether the ACL refused a message.
local function hand_over(permits, is_new, own_ms)
  if permits.queued == 0 then
    return permits.unsettled, NO
  end
  -- `removed` counts requests, `reachable` has clients, and `first` is the first request that waits.
  local progress = {is_new = is_new, own_ms = own_ms, removed = 0, is_bounded = false, first = false,
    reachable = {}, denied = NO}
  local is_refused
  repeat
    is_refused = tell(permits, progress, give_out(permits, progress))
  until not is_refused or progress.is_bounded
  if progress.is_bounded then
    return YES, progress.denied
  end
  local first = progress.first
  if first and not (own_ms and first == permits.request) and progress.is_new and permits.kept_until > now
    and not publish(permits, string.sub(first, CLIENT, CLIENT_END), KEPT_PUSH) then
    progress.denied = YES
  end
  return permits.unsettled, progress.denied
end
