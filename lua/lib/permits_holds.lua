-- The holds of permits, and when they are over. `open` reads them, and `write` writes what has changed.
--
-- The sorted set of timers has a time for each hold, before which the hold is not over. A renewal moves no
-- timer, so a timer may be early, but never late. The first script that finds it due corrects it. The hash is
-- the truth: if the timers are gone, or the clock was set back, they are made again.
--
-- There may be very many holds, and all other clients wait while a script runs. So a script makes a part of
-- the timers again, and writes down where the next script goes on. A hold that has no timer yet stays, and
-- its permits are in use: `used` and `slots` are those of the header.
--
-- While a cluster's slot moves, the server of its keys refuses to read or write a key that is not there, also
-- one that the script itself has emptied. It ends the script there. So nothing asks for a queue that is empty
-- by now, and the timers of holds that are over go last of all.

-- A script looks at about so many holds at once. A search of the hash begins and ends at START.
local PART, START = 128, '0'
-- The field of the hash that says over whom permits were granted (lib/permits_hand_over.lua).
local OVERTAKEN = 'overtaken'
-- The field of the hash that says where the next script goes on to make timers: `<now> <cursor>`. It exists
-- until the last part is made.
local PLACE, PLACE_TIME, PLACE_TIME_END, PLACE_CURSOR = 'place', 1, 13, 15

-- A hold is over: its permits and its slot are free again.
local function give_back(permits, request, hold)
  local slots, slot = permits.slots, string.sub(hold, HOLD_SLOT)
  permits.used = permits.used - string.sub(hold, HOLD_WEIGHT, HOLD_WEIGHT_END)
  if slot ~= NO_SLOT then
    permits.slots = string.sub(slots, FIRST, slot) .. NO .. string.sub(slots, slot + 2)
  end
  permits.holds[request] = false
end

local function drop(permits, request, hold)
  redis.call('HDEL', permits.lock_key, HOLD_FIELD .. request)
  give_back(permits, request, hold)
end

-- Makes a part of the timers again, and clamps each deadline beyond now + its lease: the clock was set back.
-- Until the last part, the header says that the timers must be made again.
local function rebuild(permits)
  local lock_key, timers_key, cursor = permits.lock_key, permits.timers_key, START
  local place = redis.call('HGET', lock_key, PLACE) or ''
  -- HDEL comes first: an out-of-memory server lets it pass, and then whatever follows. It leaves the header
  -- and the holds, so that these can be counted.
  redis.call('HDEL', lock_key, PLACE, OVERTAKEN, 'absent')
  permits.absent = ''
  -- If the clock was set back again, what was done must be done again.
  if place ~= '' and string.sub(place, PLACE_TIME, PLACE_TIME_END) <= now then
    cursor = string.sub(place, PLACE_CURSOR)
  end
  local next_cursor, found = unpack(redis.call('HSCAN', lock_key, cursor, 'COUNT', PART))
  for i = 1, #found, 2 do
    local field, hold = found[i], found[i + 1]
    if string.sub(field, KIND, KIND_END) == HOLD_FIELD then
      local deadline = string.sub(hold, UNTIL, UNTIL_END)
      local latest = string.format('%d', now + string.sub(hold, LEASE, LEASE_END))
      if deadline > latest then
        deadline = latest
        redis.call('HSET', lock_key, field, latest .. string.sub(hold, UNTIL_END + 1))
      end
      redis.call('ZADD', timers_key, deadline, string.sub(field, HOLDER))
      permits.longest_ms = math.max(permits.longest_ms, deadline - now)
    end
  end
  extend_ttl(timers_key, redis.call('PTTL', lock_key))
  permits.is_changed = true
  if next_cursor ~= START then
    redis.call('HSET', lock_key, PLACE, now .. ' ' .. next_cursor)
    permits.seen, permits.unsettled = STALE, YES
  elseif redis.call('ZCARD', timers_key) < redis.call('HLEN', lock_key) - 1 then
    -- A cursor means nothing to another server, which may have been the primary before.
    permits.seen = STALE
  end
end

-- Drops the holds that are over, in the order of their ends. With `exact`, it also corrects the first timer
-- that is left. It looks at BOUND timers at most. The client of an unclaimed grant is noted absent, unless it
-- calls. Returns the earliest deadline of a hold, or a time before it; FREE without any.
local function settle(permits, exact)
  local lock_key, timers_key = permits.lock_key, permits.timers_key
  -- The timers of the holds that it drops are still there, before all others.
  local index, dropped, holder, due = '0', 0, nil, nil
  for _ = 1, BOUND do
    holder, due = unpack(redis.call('ZRANGE', timers_key, index, index, 'WITHSCORES'))
    if not due or due > now and not exact then
      return due or FREE
    end
    local hold = redis.call('HGET', lock_key, HOLD_FIELD .. holder)
    local deadline = hold and string.sub(hold, UNTIL, UNTIL_END)
    if not hold then
      redis.call('ZREM', timers_key, holder)
    elseif deadline ~= due then
      -- HDEL comes first: an out-of-memory server lets it pass, and then whatever follows.
      redis.call('HDEL', lock_key, '')
      redis.call('ZADD', timers_key, deadline, holder)
    elseif due > now then
      return due
    else
      drop(permits, holder, hold)
      dropped = dropped + 1
      index = string.format('%d', dropped)
      local client = string.sub(holder, CLIENT, CLIENT_END)
      if string.sub(hold, PUSHED, PUSHED) == YES and client ~= string.sub(permits.request, CLIENT, CLIENT_END)
        and not string.find(permits.absent, client, 1, true) then
        permits.absent = client .. ' ' .. string.sub(permits.absent, CLIENT, MOST_ABSENT)
      end
    end
  end
  permits.unsettled = YES
  return due
end

-- Reads the permits, and settles what is over. Returns nil for a newer format. A queue or timers of another
-- type are an error here, before all writes.
local function open(lock_key, queue_key, timers_key, request, channel_prefix)
  local header = redis.call('HGET', lock_key, 'permits') or NO_HEADER
  local queued, timed = redis.call('ZCARD', queue_key), redis.call('ZCARD', timers_key)
  if header >= NEWER then
    return nil
  end
  local seen, used, fence, kept_until, has_absent, slots = string.match(header, WORDS)
  local permits = {
    lock_key = lock_key, queue_key = queue_key, timers_key = timers_key,
    request = request, channel_prefix = channel_prefix,
    -- The words of the header, and the clients that are noted absent.
    seen = now, used = used + 0, fence = fence, kept_until = kept_until, slots = slots,
    absent = has_absent == YES and redis.call('HGET', lock_key, 'absent') or '',
    -- How many requests are queued, and how many permits were in use before.
    queued = queued, used_before = used + 0,
    -- What `write` writes: request -> its new hold, or false if its hold is over; and the field `overtaken`.
    holds = {}, overtaken = false,
    -- Whether anything else has changed, and for how many ms the hash is needed for that.
    is_changed = false, longest_ms = 0,
    -- YES if there is so much to settle that some is left.
    unsettled = NO,
  }
  if permits.used > 0 then
    if timed == 0 or now < seen then
      rebuild(permits)
    end
    settle(permits)
  end
  return permits
end

-- Writes what has changed, if anything has.
local function write(permits)
  if not permits.is_changed and not next(permits.holds) then
    return
  end
  local lock_key, timers_key, longest_ms = permits.lock_key, permits.timers_key, permits.longest_ms
  local fields, timers, over, has_absent = {}, {}, {}, NO
  for request, hold in pairs(permits.holds) do
    if hold then
      fields[#fields + 1], fields[#fields + 2] = HOLD_FIELD .. request, hold
      timers[#timers + 1], timers[#timers + 2] = string.sub(hold, UNTIL, UNTIL_END), request
      longest_ms = math.max(longest_ms, string.sub(hold, LEASE, LEASE_END))
    else
      over[#over + 1] = request
    end
  end
  if permits.overtaken then
    fields[#fields + 1], fields[#fields + 2] = OVERTAKEN, permits.overtaken
  end
  if permits.absent ~= '' then
    has_absent, fields[#fields + 1], fields[#fields + 2] = YES, 'absent', permits.absent
  end
  local header = permits.seen .. ' ' .. string.format('%05d', permits.used) .. ' ' .. permits.fence .. ' '
    .. permits.kept_until .. ' ' .. has_absent .. ' ' .. (string.match(permits.slots, '^.*' .. YES) or '')
  fields[#fields + 1], fields[#fields + 2] = 'permits', header
  redis.call('HSET', lock_key, unpack(fields))
  extend_ttl(lock_key, longest_ms)
  if timers[1] then
    redis.call('ZADD', timers_key, unpack(timers))
    extend_ttl(timers_key, longest_ms)
  end
  if over[1] then
    redis.call('ZREM', timers_key, unpack(over))
  end
end
