-- The lock's hash: reading it, and making a request the holder. What goes beyond one hold that is not over is in holds.lua.
--
-- A lock is a table: fence, next_fence, deadline (the latest of its holds', FREE without any), count of holds, request (by
-- which the owner became the owner); and once it is settled owner, lease (of `request`) and pushed. With one hold these say
-- it all; from two on there is more of them in `holds`. All are strings but the count: times in ms have 13 digits, and
-- compare as strings.
--
-- A script runs all its definitions anew each time, and each costs as much as half a command, as does the turning of a
-- number into a string. So there are few of them, most locks need no more than these, what comes as a string stays one,
-- and a hash is read no further than it matters.

local FORMAT = '1'
local FREE = '0'
-- How long the hash outlives its deadline: a server clock set back by less takes no fence back, and the next script
-- can tell whose hold ran out.
local KEPT_MS = 60000

-- Requests are `<client>:<grant_ms>:<n>:<owner>`, the first two parts 32 and 8 wide, the owner 32 wide or empty.
local function client_of(request)
  return string.sub(request, 1, 32)
end

local function owner_of(request)
  if string.sub(request, -1) == ':' then
    return request
  end
  return string.sub(request, -32)
end

-- Sees to it that a key lives for so long at least. It lives 10 s longer, so that most calls need not prolong it.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, (ms + 10000) .. '')
  end
end

-- Reads what tells a free lock from one that is held, or was when it was last written; `settle` goes on from there. The
-- fence of the next owner is larger than the last one, also when the clock was set back: strings of 16 digits, or '0' where
-- there was none. Returns nil for a hash of a newer format.
local function read_lock(lock_key, now_us)
  local f = redis.call('HMGET', lock_key, 'v', 'fence', 'until', 'request', 'holds')
  local fence, next_fence = f[2] or '0', now_us
  if f[1] and f[1] ~= FORMAT then
    return nil
  elseif fence >= now_us then
    next_fence = string.format('%.0f', fence + 1)
  end
  if fence == '0' or f[3] == FREE then
    return {fence = fence, next_fence = next_fence, deadline = FREE, count = 0, released = true}
  end
  return {fence = fence, next_fence = next_fence, deadline = f[3], request = f[4], count = f[5] + 0}
end

-- Makes `request` the only holder of a lock that is free.
local function grant(lock_key, lock, request, deadline, lease_ms, pushed)
  if lock.holds then
    lock.erase()
  end
  lock.fence, lock.owner, lock.request, lock.pushed = lock.next_fence, owner_of(request), request, pushed
  lock.count, lock.deadline = 1, deadline
  redis.call('HSET', lock_key, 'v', FORMAT, 'fence', lock.fence, 'owner', lock.owner, 'request', request,
    'until', deadline, 'lease', lease_ms, 'pushed', pushed, 'holds', '1')
  keep(lock_key, lease_ms + KEPT_MS)
end
