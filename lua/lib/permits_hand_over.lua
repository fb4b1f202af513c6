-- How many requests are read from the queue at once.
local CHUNK = 64

-- The deadlines that were worked out, by their leases.
local ends = {}

-- Takes permits for a request. Returns the deadline, the fence and the slot.
local function take(weight, capacity, ms)
  used, fence = used + weight, fence >= now_us and string.format('%d', fence + 1) or now_us
  local slot = NO_SLOT
  if weight == SINGLE and capacity <= MOST_SLOTS then
    slot = string.format('%d', (string.find(slots, NO, FIRST, true) or #slots + 1) - 1)
    mark(slot, YES)
  end
  ends[ms] = ends[ms] or string.format('%d', now + ms)
  return ends[ms], fence, slot
end

-- Gives out as many permits as there are, from the head of the queue on, and stops at the first request for
-- which there are too few. That one waits, unless its client cannot be reached: then it would only keep the
-- others out. A client is told of all its grants at once. If the ACL refuses that, they are void, and their
-- permits go to the next requests. The effects come in this order: reads; ZREM; PUBLISH; then the writes, of
-- which none can fail any more.
--
-- A request is full if as many permits are in use as its capacity. One with a larger capacity overtakes full
-- ones. For each head of the queue, the field `overtaken` counts the permits that were granted over it:
-- `<permits> <request>`. A grant over it must fit into the capacity together with these, so nobody is
-- overtaken for good. The script looks for larger capacities only if it knows of one, since it would read the
-- whole queue in vain where all callers say the same: if more permits were in use than the capacity of the
-- head, or if its own request has a larger one. It steps over CHUNK full requests at most. A request that it
-- misses gets its permits when its client polls.
--
-- `own_request`, if it is queued, gets the lease `own_ms` and no message. Permits that stay taken come back
-- by time, and nobody releases them. So the client of a request is told to ask for that time when its request
-- becomes the first. `is_new` says that this may be so, or that more permits stay taken.
--
-- Returns whether a bound was reached, whether the ACL refused a push, and the own deadline, fence and
-- slot.
local function hand_over(queue_key, channel_prefix, is_new, own_request, own_ms)
  local pubsub_mode = string.sub(channel_prefix, PUBSUB_MODE, PUBSUB_MODE)
  local sharded = pubsub_mode == SHARDED or pubsub_mode == MIGRATING
  local channel = string.sub(channel_prefix, PREFIX)
  local reachable, gone, removed, more, denied, own = {}, {}, 0, YES, NO, nil
  local stays, stepped, overtaken, last, bounded, refused, chunk = nil, 0, nil, nil, false, false, 1
  -- The largest capacity that is known, or less.
  local largest = math.max(used_before, own_request and string.sub(own_request, CAPACITY, CAPACITY_END) or 0)

  local function is_reachable(waiter)
    local alive_until = redis.pcall('ZSCORE', clients_key, waiter)
    if type(alive_until) ~= 'string' or alive_until <= now then
      return false
    end
    -- Where the number of subscribers cannot be asked for, the presence record alone decides.
    return pubsub_mode ~= PLAIN and pubsub_mode ~= SHARDED
      or redis.pcall('PUBSUB', sharded and 'SHARDNUMSUB' or 'NUMSUB', channel .. waiter)[2] ~= 0
  end

  local function publish(waiter, message)
    return type(redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel .. waiter, message)) == 'number'
  end

  -- Whether the first request must hear that permits stay taken.
  local function is_told_of_time()
    return kept_until > now and (is_new or removed > 0)
  end

  -- How many permits were granted over a request while it was the first in the queue.
  local function overtaken_by(request)
    if not overtaken then
      local permits, before = string.match(redis.call('HGET', lock_key, OVERTAKEN) or '', '(%d+) (%S+)')
      overtaken = {[before or ''] = permits}
    end
    return overtaken[request] or 0
  end

  repeat
    local told, grants = {}, {}
    stays, stepped = nil, 0
    while more == YES and not bounded do
      local heads = queued > stepped and redis.call('ZRANGE', queue_key, string.format('%d', stepped),
        string.format('%d', stepped + chunk - 1)) or {}
      local passed, passed_capacity = {}, 0
      more = #heads == chunk and YES or NO
      for _, head in ipairs(heads) do
        local waiter, weight = string.sub(head, CLIENT, CLIENT_END), string.sub(head, WEIGHT, WEIGHT_END)
        local capacity, is_own = string.sub(head, CAPACITY, CAPACITY_END), head == own_request
        local free = capacity - used
        local steps = free <= 0 and largest - capacity > 0
        -- Of several full requests, only the first must be reachable.
        local is_asked = free > 0 or not stays and (steps or is_told_of_time())
        if is_asked and not is_own and reachable[waiter] == nil then
          reachable[waiter] = is_reachable(waiter)
        end
        local is_waiting = is_own or not is_asked or reachable[waiter]
        local is_blocked = weight - free > 0 or stays and overtaken_by(stays) + weight > capacity + 0
        if steps and is_waiting and stepped < CHUNK then
          stays, stepped = stays or head, stepped + 1
        elseif is_blocked and is_waiting then
          more, stays = NO, stays or head
          break
        elseif removed == BOUND then
          more, bounded = YES, true
          break
        else
          if stays and is_waiting then
            last, overtaken[stays] = stays, overtaken_by(stays) + weight
          end
          if is_own then
            local deadline, its_fence, slot = take(weight, capacity, own_ms)
            add(head, deadline, own_ms, NO, its_fence, weight, slot)
            own = {deadline, its_fence, slot}
          elseif reachable[waiter] then
            local ms, its = string.sub(head, CLAIM_MS, CLAIM_MS_END), grants[waiter]
            local deadline, its_fence, slot = take(weight, capacity, ms)
            if not its then
              its = {words = {PUSH_VERSION}}
              told[#told + 1], grants[waiter] = waiter, its
            end
            its.words[#its.words + 1] = its_fence .. ' ' .. deadline .. ' ' .. head .. ' ' .. slot
            its[#its + 1] = {head, deadline, ms, YES, its_fence, weight, slot}
          else
            gone[waiter] = true
          end
          passed[#passed + 1], removed, passed_capacity = head, removed + 1, capacity
        end
      end
      chunk = stays and CHUNK or math.max(1, math.min(CHUNK, passed_capacity - used, BOUND - removed))
      if passed[1] then
        redis.call('ZREM', queue_key, unpack(passed))
        queued = queued - #passed
      end
    end
    refused = false
    for _, waiter in ipairs(told) do
      local is_told = publish(waiter, table.concat(grants[waiter].words, ' '))
      if not is_told then
        reachable[waiter], gone[waiter], refused, changed, denied, more = false, true, true, true, YES, YES
      end
      for _, hold in ipairs(grants[waiter]) do
        if is_told then
          add(unpack(hold))
        else
          -- Its permits and its slot are free again. Its fence is not given out again. A hold of the same
          -- request that was lost may have left a timer.
          used, ended[hold[1]] = used - hold[#hold - 1], true
          mark(hold[#hold], NO)
        end
      end
    end
  until not refused
  for waiter in pairs(gone) do
    redis.pcall('ZREM', clients_key, waiter)
  end
  if last then
    fields[#fields + 1], fields[#fields + 2] = OVERTAKEN, overtaken[last] .. ' ' .. last
  end
  write()
  if more == NO and stays and stays ~= own_request and is_told_of_time()
    and not publish(string.sub(stays, CLIENT, CLIENT_END), KEPT_PUSH) then
    denied = YES
  end
  return more == YES and YES or unsettled, denied, own
end
