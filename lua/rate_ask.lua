-- rate_ask: gives out the turns of a rate limit, by the generic cell rate algorithm.
--
-- A waitlist asks for its callers that wait. It asks again when the reply says, and after an
-- unknown outcome: what the first call gave out is lost then. All times here are in µs.
--
-- Returns `status waitlist now deadline again ahead waits...`, with a `deadline` of 0. The status is one of
-- these:
local ASKED = '1'
local SHOWN = '2'  -- the same reply, with other words after the deadline: `next us waiting`
-- `waits` has a word for each of the first callers that have their turns: how long from now on they wait for
-- it. `again` is when the waitlist asks for those that are left, or 0 without any. `ahead` is the number of
-- waitlists that come before them. `next` is the time of the next turn, `us` is now, and `waiting` is the
-- number of waitlists in the queue.
--
-- Writes the rate: in `next` the time of the next turn and that of the call, and for each waitlist when it is
-- late; and the queue.

-- KEYS[1]  hash: the rate
-- KEYS[2]  sorted set: the queue, waitlist -> when its first caller came (µs)
local rate_key, queue_key = KEYS[1], KEYS[2]
-- ARGV[1]  string: the waitlist
-- ARGV[2]  'wait', 'try' to leave no place in the queue, or 'look' to take nothing
-- ARGV[3]  µs: between two turns
-- ARGV[4]  µs: by how much turns may come early, as a burst
-- ARGV[5]  µs: for how long ahead turns are given out. A look leaves out this one and the next
-- ARGV[6]  string: for each caller `<age>/<cost> `, the first one first: for how long it has waited (µs), and
--          how many turns it takes
local waitlist, mode, interval, burst = ARGV[1], ARGV[2], ARGV[3] + 0, ARGV[4] + 0
local window, callers = (ARGV[5] or '0') + 0, ARGV[6]

-- A waitlist that asks later than it should by more than this is passed over until it asks again.
local GRACE = 50000
-- When a waitlist asks again, if the next turn belongs to another one, which is somewhat late.
local OVERDUE = 5000
-- When a waitlist asks again, if the first one asks later: the caller of that one may give up.
local CHECK = 250000
-- The longest and the shortest time after which a waitlist asks again.
local LONGEST_PAUSE, SHORTEST_PAUSE = 5000000, 1000
-- The waitlists that a call looks at.
local FIRST_HEAD, LAST_HEAD = '0', '15'

local us = now_us + 0
-- The time of the next turn, and of the call that wrote it. If the clock was set back since, so is the turn.
local earliest, written = string.match(redis.call('HGET', rate_key, 'next') or '0 0', '(%d+) (%d+)')
local was_set_back = written + 0 > us
earliest = was_set_back and math.max(0, earliest - (written - us)) or earliest + 0
local heads = redis.call('ZRANGE', queue_key, FIRST_HEAD, LAST_HEAD, 'WITHSCORES')
local late, others, first_came, first_late = {}, {}, nil, nil
for i = 1, #heads, 2 do
  local other = heads[i]
  local due = other ~= waitlist and (redis.call('HGET', rate_key, other) or '0') + 0
  if due and (due < us or due > us + LONGEST_PAUSE + GRACE) then
    late[#late + 1] = other
  elseif due then
    -- Callers that came at the same time have the order of their waitlists.
    local other_came = heads[i + 1] + (waitlist < other and 1 or 0)
    others[#others + 1] = other_came
    first_came, first_late = first_came or other_came, first_late or due
  end
end

if mode == 'look' then
  local waiting = redis.call('ZCARD', queue_key) - #late
  return SHOWN .. ' ' .. waitlist .. ' ' .. now .. ' 0 ' .. string.format('%d %d %d', earliest, us, waiting)
end

-- Until it has had a turn, a waitlist keeps its place, though the caller that came then may have given up.
-- Otherwise each one that asks would come after the others, whose places are older than their callers.
local place = mode == 'wait' and redis.call('ZSCORE', queue_key, waitlist)
local waits, came, free_at = {}, nil, nil
for age, cost in string.gmatch(callers, '(%d+)/(%d+) ') do
  came = us - age
  if place and not waits[1] then
    came = math.min(came, place)
  end
  free_at = math.max(us, earliest + (cost - 1) * interval - burst)
  if free_at > us + window or first_came and first_came <= came then
    break
  end
  waits[#waits + 1] = string.format('%d', free_at - us)
  earliest, came = math.max(earliest, free_at) + cost * interval, nil
end

local again, ahead = 0, 0
if came then
  for _, other_came in ipairs(others) do
    ahead = ahead + (other_came <= came and 1 or 0)
  end
  -- Each waitlist before this one takes a turn at least, but not before the first of them asks.
  again = free_at - us - window + ahead * interval
  if ahead > 0 then
    local first_asks = first_late - GRACE > us and first_late - GRACE - us or OVERDUE
    again = math.max(again, math.min(first_asks, CHECK))
    -- Those that do not ask any more are passed over by then.
    again = math.min(again, first_late - us + ahead * GRACE)
  end
  again = math.max(again, SHORTEST_PAUSE)
  -- A try does not ask again: the reply says when a turn can come.
  if mode ~= 'try' then
    again = math.min(again, LONGEST_PAUSE)
  end
end
if late[1] then
  redis.call('ZREM', queue_key, unpack(late))
  redis.call('HDEL', rate_key, unpack(late))
end
local next_turn = string.format('%d %d', earliest, us)
local next_ms = math.max(0, earliest - us) / 1000
if came and mode ~= 'try' then
  redis.call('HSET', rate_key, 'next', next_turn, waitlist, string.format('%d', us + again + GRACE))
  redis.call('ZADD', queue_key, string.format('%d', came), waitlist)
  extend_ttl(queue_key, next_ms)
elseif waits[1] or was_set_back then
  redis.call('HSET', rate_key, 'next', next_turn)
end
if not came and mode ~= 'try' then
  redis.call('HDEL', rate_key, waitlist)
  redis.call('ZREM', queue_key, waitlist)
end
extend_ttl(rate_key, next_ms)
return ASKED .. ' ' .. waitlist .. ' ' .. now .. ' 0 ' .. string.format('%d', again) .. ' ' .. ahead
  .. (waits[1] and ' ' .. table.concat(waits, ' ') or '')
