-- The lock's hash: reading it, and writing it.
--
-- A lock is a table: fence, owner, request (by which the owner became the owner), pushed, count of holds, and
-- holds: request -> {deadline, lease}, in ms. With one hold the fields of the hash say it all; from two on each
-- hold has a field `h:<request>` of its own beside them (`spread`).

local FORMAT = 1
-- How long the hash outlives its deadline: a server clock set back by less takes no fence back, and the next script
-- can tell whose hold ran out.
local KEPT_MS = 60000

-- Requests are `<client>:<grant_ms>:<n>:<owner>`, the first two parts 32 and 8 wide, the owner 32 wide or empty.
local function client_of(request)
  return string.sub(request, 1, 32)
end

local function grant_ms_of(request)
  return tonumber(string.sub(request, 34, 41))
end

local function owner_of(request)
  if string.sub(request, -1) == ':' then
    return request
  end
  return string.sub(request, -32)
end

-- The latest deadline of its holds (0: none), and whose that is.
local function latest_deadline(lock)
  local latest, whose = 0, nil
  for request, hold in pairs(lock.holds) do
    if hold.deadline > latest or (hold.deadline == latest and request < whose) then
      latest, whose = hold.deadline, request
    end
  end
  return latest, whose
end

-- Writes the holds of a lock that goes on being held. PEXPIRE comes first: an out-of-memory server lets it pass,
-- and then whatever follows.
local function write_holds(lock_key, lock, now_ms)
  local latest, whose = latest_deadline(lock)
  redis.call('PEXPIRE', lock_key, latest - now_ms + KEPT_MS)
  if not lock.holds[lock.request] then
    lock.request, lock.pushed = whose, 0
  end
  if lock.spread then
    for field in pairs(lock.spread) do
      if lock.count == 1 or not lock.holds[string.sub(field, 3)] then
        redis.call('HDEL', lock_key, field)
      end
    end
  end
  local fields = {'request', lock.request, 'until', latest, 'lease', lock.holds[lock.request].lease,
    'pushed', lock.pushed, 'holds', lock.count}
  if lock.count > 1 then
    for request, hold in pairs(lock.holds) do
      fields[#fields + 1] = 'h:' .. request
      fields[#fields + 1] = hold.deadline .. ' ' .. hold.lease
    end
  end
  redis.call('HSET', lock_key, unpack(fields))
end

-- A deadline beyond now + lease means that the server's clock was set back; a dead holder never mends it.
local function clamp(hold, now_ms)
  if hold.deadline > now_ms + hold.lease then
    hold.deadline = now_ms + hold.lease
    return true
  end
end

-- Reads the lock, drops the holds whose deadline is past, and clamps the others. Their clients' records go with
-- them, at once or, when no hold is left, through `ended`: by the hand-over, after its first write.
-- Returns nil for a hash of a newer format.
local function read_lock(lock_key, clients_key, now_ms)
  local f = redis.call('HMGET', lock_key, 'v', 'fence', 'owner', 'request', 'until', 'lease', 'pushed', 'holds')
  if f[1] and tonumber(f[1]) > FORMAT then
    return nil
  end
  local lock = {exists = f[2], fence = f[2] or '0', owner = f[3] or '', request = f[4] or '',
    pushed = tonumber(f[7] or 0), count = tonumber(f[8] or 0), holds = {}, ended = {}}
  if lock.count == 1 then
    lock.holds[lock.request] = {deadline = tonumber(f[5]), lease = tonumber(f[6])}
  elseif lock.count > 1 then
    lock.spread = {}
    local all = redis.call('HGETALL', lock_key)
    for i = 1, #all, 2 do
      if string.sub(all[i], 1, 2) == 'h:' then
        lock.spread[all[i]] = true
        lock.holds[string.sub(all[i], 3)] =
          {deadline = tonumber(string.sub(all[i + 1], 1, 13)), lease = tonumber(string.sub(all[i + 1], 15))}
      end
    end
  end
  local changed = false
  for request, hold in pairs(lock.holds) do
    if hold.deadline <= now_ms then
      lock.holds[request] = nil
      lock.count = lock.count - 1
      lock.ended[#lock.ended + 1] = client_of(request)
      changed = true
    elseif clamp(hold, now_ms) then
      changed = true
    end
  end
  if changed and lock.count > 0 then
    write_holds(lock_key, lock, now_ms)
    if clients_key then
      for _, client in ipairs(lock.ended) do
        redis.pcall('ZREM', clients_key, client)
      end
    end
    lock.ended = {}
    lock.spread = lock.count > 1 and lock.spread or nil
  end
  return lock
end

-- Makes `request` the only holder of a lock that is free.
local function grant(lock_key, lock, request, fence, now_ms, lease_ms, pushed)
  if lock.spread then
    redis.call('DEL', lock_key)
    lock.spread = nil
  end
  lock.fence, lock.owner, lock.request, lock.pushed = fence, owner_of(request), request, pushed
  lock.count, lock.holds = 1, {[request] = {deadline = now_ms + lease_ms, lease = lease_ms}}
  redis.call('HSET', lock_key, 'v', FORMAT, 'fence', fence, 'owner', lock.owner, 'request', request,
    'until', now_ms + lease_ms, 'lease', lease_ms, 'pushed', pushed, 'holds', 1)
  redis.call('PEXPIRE', lock_key, lease_ms + KEPT_MS)
end

-- Leaves the lock with nobody. An empty owner tells a release from a lease that ran out.
local function free(lock_key, lock)
  if lock.spread then
    redis.call('DEL', lock_key)
  end
  redis.call('HSET', lock_key, 'v', FORMAT, 'fence', lock.fence, 'owner', '', 'request', '',
    'until', 0, 'lease', 0, 'pushed', 0, 'holds', 0)
  redis.call('PEXPIRE', lock_key, KEPT_MS)
end

-- The fence of the next change of owner. Both are strings of 16 digits, but for the '0' of a lock without one.
local function next_fence(lock, now_us)
  if #lock.fence < #now_us or lock.fence < now_us then
    return now_us
  end
  return string.format('%.0f', tonumber(lock.fence) + 1)
end

-- Whether a hold that is gone ran out, rather than that somebody has had the lock since or released it.
local function ran_out(lock, fence)
  return not lock.exists or (lock.fence == fence and lock.owner ~= '')
end
