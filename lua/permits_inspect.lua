-- permits_inspect: says who holds permits, how many are in use, and how many requests wait.
--
-- Returns `status request now deadline in_use waiting first listed`, with a `deadline` of 0, and for each of
-- the `listed` holds `until fence weight slot holder`. Of many holds, some that end first are listed. `first`
-- is the ticket (µs) of the first request in the queue, or 0 if nobody is queued. The status is NEWER_FORMAT
-- or this one:
local PERMITS = '4'

-- KEYS[1], KEYS[2], KEYS[3]: as in permits_acquire.lua
local lock_key, queue_key, timers_key = KEYS[1], KEYS[2], KEYS[3]
-- ARGV[1]  string: the request, which only names the call
local request = ARGV[1]

-- The largest number of holds that are listed.
local LISTED = 100

local permits = open(lock_key, queue_key, timers_key, request)
if not permits then
  return NEWER_FORMAT .. ' ' .. request .. ' ' .. now .. ' 0'
end
write(permits)
local lines = {}
for _, holder in ipairs(permits.used > 0 and redis.call('ZRANGE', timers_key, '0', LISTED - 1 .. '') or {}) do
  local hold = redis.call('HGET', lock_key, HOLD_FIELD .. holder)
  if hold then
    local deadline = string.sub(hold, UNTIL, UNTIL_END)
    lines[#lines + 1] = deadline .. ' ' .. string.sub(hold, HOLD_FENCE) .. ' ' .. holder
  end
end
-- Timers may be early. No two holds have the same fence.
table.sort(lines)
local first = permits.queued > 0 and redis.call('ZRANGE', queue_key, '0', '0', 'WITHSCORES')[2] or '0'
return table.concat({PERMITS, request, now, '0', string.format('%d', permits.used), permits.queued, first,
  #lines, unpack(lines)}, ' ')
