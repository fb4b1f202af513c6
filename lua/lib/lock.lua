-- The lock's hash: reading it, and writing it.
--
-- A lock is a table: fence, owner, request (by which the owner became the owner), pushed, lease (of `request`), count
-- of holds, and the latest deadline of these (0: none). With one hold these say it all; from two on each hold has a
-- field `h:<request>` of its own beside them, and here an entry in `holds`: request -> {deadline, lease}, in ms.
--
-- A script runs all definitions anew each time, and most locks have one hold: its path makes no table but the lock.
-- Numbers go to `redis.call` as strings (`.. ''`), since writing them costs it more than most commands.

local FORMAT = '1'
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

-- Until when a request holds; nil if it doesn't.
local function deadline_of(lock, request)
  if lock.holds then
    local hold = lock.holds[request]
    return hold and hold.deadline
  elseif lock.request == request and lock.count == 1 then
    return lock.deadline
  end
end

-- Takes a hold away; `write_holds` removes its field.
local function drop_hold(lock, request)
  lock.count = lock.count - 1
  if lock.holds then
    lock.holds[request] = nil
    lock.dropped = lock.dropped or {}
    table.insert(lock.dropped, request)
  end
end

-- Writes the holds of a lock that goes on being held, after any change of them. PEXPIRE comes first: an
-- out-of-memory server lets it pass, and then whatever follows.
local function write_holds(lock_key, lock, now_ms)
  local holds, first = lock.holds, nil
  if holds then
    lock.deadline = 0
    for request, hold in pairs(holds) do
      if hold.deadline > lock.deadline or (hold.deadline == lock.deadline and request < first) then
        lock.deadline, first = hold.deadline, request
      end
    end
    if not holds[lock.request] then
      lock.request, lock.pushed = first, '0'
    end
    lock.lease = holds[lock.request].lease
  end
  redis.call('PEXPIRE', lock_key, (lock.deadline - now_ms + KEPT_MS) .. '')
  if holds then
    for _, request in ipairs(lock.dropped or {}) do
      redis.call('HDEL', lock_key, 'h:' .. request)
    end
    for request, hold in pairs(holds) do
      if lock.count == 1 then
        redis.call('HDEL', lock_key, 'h:' .. request)
      elseif hold.changed then
        redis.call('HSET', lock_key, 'h:' .. request, hold.deadline .. ' ' .. hold.lease)
      end
    end
  end
  redis.call('HSET', lock_key, 'request', lock.request, 'until', lock.deadline .. '', 'lease', lock.lease .. '',
    'pushed', lock.pushed, 'holds', lock.count .. '')
  lock.dropped = nil
  if lock.count == 1 then
    lock.holds = nil
  end
end

-- Reads the fields of two holds or more: drops those that are over, clamps the others.
local function read_holds(lock_key, clients_key, lock, now_ms, caller)
  local changed, ended = false, {}
  lock.holds = {}
  local all = redis.call('HGETALL', lock_key)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'h:' then
      local request = string.sub(all[i], 3)
      local hold = {deadline = tonumber(string.sub(all[i + 1], 1, 13)), lease = string.sub(all[i + 1], 15)}
      lock.holds[request] = hold
      if hold.deadline <= now_ms then
        drop_hold(lock, request)
        if client_of(request) ~= caller then
          ended[#ended + 1] = client_of(request)
        end
        changed = true
      elseif hold.deadline > now_ms + hold.lease then
        hold.deadline, hold.changed = now_ms + hold.lease, true
        changed = true
      end
    end
  end
  if lock.count == 0 then
    lock.deadline, lock.ended = 0, ended
  elseif changed then
    write_holds(lock_key, lock, now_ms)
    for _, client in ipairs(clients_key and ended or {}) do
      redis.pcall('ZREM', clients_key, client)
    end
  end
end

-- Reads the lock, drops the holds whose deadline is past, and clamps a deadline beyond now + its lease: the server's
-- clock was set back, and a dead holder never mends it. The records of clients whose holds are over go with them, but
-- for the calling client's, which is awake: at once or, when no hold is left, through `ended`, after the first write of
-- what follows.
-- Returns nil for a hash of a newer format.
local function read_lock(lock_key, clients_key, now_ms, caller)
  local f = redis.call('HMGET', lock_key, 'v', 'fence', 'owner', 'request', 'until', 'lease', 'pushed', 'holds')
  if f[1] and f[1] ~= FORMAT then
    return nil
  elseif not f[2] then
    return {fence = '0', owner = '', count = 0, deadline = 0}
  end
  local lock = {fence = f[2], owner = f[3], request = f[4], deadline = tonumber(f[5]), lease = f[6], pushed = f[7],
    count = tonumber(f[8])}
  if lock.count > 1 then
    read_holds(lock_key, clients_key, lock, now_ms, caller)
  elseif lock.count == 1 and lock.deadline <= now_ms then
    lock.count, lock.deadline = 0, 0
    if client_of(lock.request) ~= caller then
      lock.ended = {client_of(lock.request)}
    end
  elseif lock.deadline > now_ms + lock.lease then
    lock.deadline = now_ms + lock.lease
    write_holds(lock_key, lock, now_ms)
  end
  return lock
end

-- Removes the fields of all holds.
local function drop_fields(lock_key, lock)
  for request in pairs(lock.holds) do
    redis.call('HDEL', lock_key, 'h:' .. request)
  end
  for _, request in ipairs(lock.dropped or {}) do
    redis.call('HDEL', lock_key, 'h:' .. request)
  end
  lock.holds = nil
end

-- Makes `request` the only holder of a lock that is free.
local function grant(lock_key, lock, request, fence, now_ms, lease_ms, pushed)
  if lock.holds then
    drop_fields(lock_key, lock)
  end
  lock.fence, lock.owner, lock.request, lock.pushed = fence, owner_of(request), request, pushed
  lock.count, lock.deadline = 1, now_ms + lease_ms
  redis.call('HSET', lock_key, 'v', FORMAT, 'fence', fence, 'owner', lock.owner, 'request', request,
    'until', lock.deadline .. '', 'lease', lease_ms .. '', 'pushed', pushed, 'holds', '1')
  redis.call('PEXPIRE', lock_key, (lease_ms + KEPT_MS) .. '')
end

-- The fence of the next change of owner. Both are strings of 16 digits, but for the '0' of a lock without one.
local function next_fence(lock, now_us)
  if lock.fence < now_us then
    return now_us
  end
  return string.format('%.0f', lock.fence + 1)
end

-- Whether a hold that is gone ran out, rather than that somebody has had the lock since or released it.
local function ran_out(lock, fence)
  return lock.fence == '0' or (lock.fence == fence and lock.owner ~= '')
end
