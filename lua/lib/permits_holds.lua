-- The holds of permits, and when they are over.
--
-- The sorted set of timers has a time for each hold, before which the hold is not over. A renewal
-- moves no timer, so a timer may be early, but never late. The first script that finds it due corrects it.
-- The hash is the truth: if the timers are gone, or the clock was set back, they are made again.
--
-- There may be very many holds, and all other clients wait while a script runs. So a script makes a part of
-- the timers again, and writes down where the next script goes on. A hold that has no timer yet stays, and
-- its permits are in use: `used` and `slots` are those of the header.
--
-- While a cluster's slot moves, the server of its keys refuses to read or write a key that is not there, also
-- one that the script itself has emptied. It ends the script there. So nothing asks for a queue that is empty
-- by now, and the timers of holds that are over go last of all.

-- The field of the hash that says over whom permits were granted (lib/permits_hand_over.lua).
local OVERTAKEN = 'overtaken'
-- A script looks at about so many holds at once. A search of the hash begins and ends at START.
local PART, START = 128, '0'
-- The field of the hash that says where the next script goes on to make timers: `<now> <cursor>`. It exists
-- until the last part is made.
local PLACE, PLACE_TIME, PLACE_TIME_END, PLACE_CURSOR = 'place', 1, 13, 15
-- The server keeps a small hash or sorted set as a list, and searches all of it for each addition. A name
-- that is longer than 64 bytes makes it a table at once, before many are added.
local MANY = 64
local LONG = '-----------------------------------------------------------------'

local lock_key, clients_key, timers_key, client
local used, fence, kept_until, slots = 0, '', RELEASED_UNTIL, ''
-- How many permits were in use before the script.
local used_before = 0
-- The number of requests in the queue.
local queued = 0
-- Whether the header must be written, and whether there was so much to settle that some is left. The earliest
-- deadline of a hold, or a time before it. What is written as `seen`.
local changed, unsettled, earliest, seen_at = false, NO, FREE, now
-- What `write` writes besides the header, the requests whose timers it removes, and the longest lease.
local fields, timers, ended, longest_ms = {}, {}, {}, 0

-- `is_taken` is YES or NO. The slots begin with number 0.
local function mark(slot, is_taken)
  if slot ~= NO_SLOT then
    local before = string.sub(slots, FIRST, slot) .. string.rep(NO, slot - #slots)
    slots = before .. is_taken .. string.sub(slots, slot + 2)
  end
end

-- Adds a hold to those that `write` writes. Its permits and its slot are marked as taken already.
local function add(request, deadline, ms, pushed, its_fence, weight, slot)
  fields[#fields + 1] = HOLD_FIELD .. request
  fields[#fields + 1] = deadline .. ' ' .. ms .. ' ' .. pushed .. ' ' .. its_fence .. ' ' .. weight .. ' '
    .. slot
  timers[#timers + 1], timers[#timers + 2] = deadline, request
  ended[request] = nil
  longest_ms, changed = math.max(longest_ms, ms), true
end

local function write()
  if not changed then
    return
  end
  fields[#fields + 1] = 'permits'
  fields[#fields + 1] = seen_at .. ' ' .. string.format('%05d', used) .. ' ' .. fence .. ' ' .. kept_until
    .. ' ' .. (string.match(slots, '^.*' .. YES) or '')
  if #timers > MANY then
    fields[#fields + 1], fields[#fields + 2] = LONG, ''
    redis.call('ZADD', timers_key, '0', LONG)
    ended[LONG] = true
  end
  redis.call('HSET', lock_key, unpack(fields))
  if ended[LONG] then
    redis.call('HDEL', lock_key, LONG)
  end
  extend_ttl(lock_key, longest_ms)
  if timers[1] then
    redis.call('ZADD', timers_key, unpack(timers))
    extend_ttl(timers_key, longest_ms)
  end
  local over = {}
  for request in pairs(ended) do
    over[#over + 1] = request
  end
  if over[1] then
    redis.call('ZREM', timers_key, unpack(over))
  end
  fields, timers, ended, longest_ms, changed = {}, {}, {}, 0, false
end

local function drop(request, hold)
  redis.call('HDEL', lock_key, HOLD_FIELD .. request)
  ended[request] = true
  used, changed = used - string.sub(hold, HOLD_WEIGHT, HOLD_WEIGHT_END), true
  mark(string.sub(hold, HOLD_SLOT), NO)
end

-- Makes a part of the timers again, and clamps each deadline beyond now + its lease: the clock was set back.
-- Until the last part, the header says that the timers must be made again.
local function rebuild()
  local place = redis.call('HGET', lock_key, PLACE) or ''
  -- HDEL comes first: an out-of-memory server lets it pass, and then whatever follows. It leaves the header
  -- and the holds, so that these can be counted.
  redis.call('HDEL', lock_key, PLACE, OVERTAKEN)
  local cursor = START
  -- If the clock was set back again, what was done must be done again.
  if place ~= '' and string.sub(place, PLACE_TIME, PLACE_TIME_END) <= now then
    cursor = string.sub(place, PLACE_CURSOR)
  end
  local page = redis.call('HSCAN', lock_key, cursor, 'COUNT', PART)
  local found = page[2]
  cursor = page[1]
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
      longest_ms = math.max(longest_ms, deadline - now)
    end
  end
  extend_ttl(timers_key, redis.call('PTTL', lock_key))
  changed = true
  if cursor ~= START then
    redis.call('HSET', lock_key, PLACE, now .. ' ' .. cursor)
    seen_at, unsettled = STALE, YES
  elseif redis.call('ZCARD', timers_key) < redis.call('HLEN', lock_key) - 1 then
    -- A cursor means nothing to another server, which may have been the primary before.
    seen_at = STALE
  end
end

-- Drops the holds that are over, in the order of their ends. With `exact`, it also corrects the first timer
-- that is left. It looks at BOUND timers at most. A client that did not claim a grant is dead or asleep, and
-- loses its presence record, unless it calls.
local function settle(exact)
  -- The timers of the holds that it drops are still there, before all others.
  local dropped, index = 0, '0'
  for _ = 1, BOUND do
    local first = redis.call('ZRANGE', timers_key, index, index, 'WITHSCORES')
    local holder, due = first[1], first[2]
    earliest = due or FREE
    if not due or due > now and not exact then
      return
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
      return
    else
      drop(holder, hold)
      dropped = dropped + 1
      index = string.format('%d', dropped)
      local its_client = string.sub(holder, CLIENT, CLIENT_END)
      if clients_key and string.sub(hold, PUSHED, PUSHED) == YES and its_client ~= client then
        redis.pcall('ZREM', clients_key, its_client)
      end
    end
  end
  unsettled = YES
end

-- Reads the header, and settles what is over; `write` is up to the caller. Without the key of the clients, no
-- client loses its presence record. Returns false for a newer format. A queue or timers of another type are
-- an error here, before all writes.
local function open(its_lock_key, queue_key, its_clients_key, its_timers_key, request)
  lock_key, clients_key, timers_key = its_lock_key, its_clients_key, its_timers_key
  client = string.sub(request, CLIENT, CLIENT_END)
  local header, timed = redis.call('HGET', lock_key, 'permits') or '', redis.call('ZCARD', timers_key)
  queued = redis.call('ZCARD', queue_key)
  if header ~= '' and header < NEWER then
    used, fence = string.sub(header, USED, USED_END) + 0, string.sub(header, LAST_FENCE, LAST_FENCE_END)
    kept_until = string.sub(header, KEPT_UNTIL, KEPT_UNTIL_END)
  end
  if used > 0 then
    used_before = used
    slots = string.sub(header, SLOTS)
    if timed == 0 or now < string.sub(header, SEEN, SEEN_END) then
      rebuild()
    end
    settle()
  end
  return header < NEWER
end
