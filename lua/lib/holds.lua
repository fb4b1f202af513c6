-- What a lock has beyond one hold that goes on: holds that are over, and the several ones of an owner. From two on each has a
-- field `h:<request>` in the hash, `<deadline> <lease>`, and an entry in `lock.holds`: request -> {deadline, lease}.

-- Defines what only few locks come to need.
local function define_holds(lock_key, lock, now)
  local holds = {}

  -- Whether a hold that is gone ran out, rather than that somebody has had the lock since or released it.
  function holds.ran_out(fence)
    return lock.fence == '0' or (lock.fence == fence and not lock.released)
  end

  -- Adds a hold to those of its owner. The first gets an entry of its own with the second.
  function holds.add(request, deadline, lease_ms)
    lock.holds = lock.holds or {[lock.request] = {deadline = lock.deadline, lease = lock.lease, changed = true}}
    lock.holds[request] = {deadline = deadline, lease = lease_ms, changed = true}
    lock.count = lock.count + 1
  end

  -- Takes a hold away; `write` removes its field.
  function holds.drop(request)
    lock.count = lock.count - 1
    if lock.holds then
      lock.holds[request] = nil
      lock.dropped = lock.dropped or {}
      table.insert(lock.dropped, request)
    end
  end

  -- Removes the fields of all holds.
  function holds.erase()
    for request in pairs(lock.holds or {}) do
      redis.call('HDEL', lock_key, 'h:' .. request)
    end
    for _, request in ipairs(lock.dropped or {}) do
      redis.call('HDEL', lock_key, 'h:' .. request)
    end
    lock.holds = nil
  end

  -- Writes the holds of a lock that goes on being held, after any change of them. PEXPIRE comes first: an
  -- out-of-memory server lets it pass, and then whatever follows.
  function holds.write()
    local entries, first = lock.holds, nil
    if entries then
      lock.deadline = FREE
      for request, hold in pairs(entries) do
        if hold.deadline > lock.deadline or (hold.deadline == lock.deadline and request < first) then
          lock.deadline, first = hold.deadline, request
        end
      end
      if not entries[lock.request] then
        lock.request, lock.pushed = first, '0'
      end
      lock.lease = entries[lock.request].lease
    end
    redis.call('PEXPIRE', lock_key, (lock.deadline - now + KEPT_MS) .. '')
    if entries then
      for _, request in ipairs(lock.dropped or {}) do
        redis.call('HDEL', lock_key, 'h:' .. request)
      end
      for request, hold in pairs(entries) do
        if lock.count == 1 then
          redis.call('HDEL', lock_key, 'h:' .. request)
        elseif hold.changed then
          redis.call('HSET', lock_key, 'h:' .. request, hold.deadline .. ' ' .. hold.lease)
        end
      end
    end
    redis.call('HSET', lock_key, 'request', lock.request, 'until', lock.deadline, 'lease', lock.lease,
      'pushed', lock.pushed, 'holds', lock.count .. '')
    lock.dropped = nil
    if lock.count == 1 then
      lock.holds = nil
    end
  end

  -- Reads the fields of two holds or more: drops those that are over, clamps the others. Returns the clients of the former.
  function holds.read()
    local changed, ended = false, {}
    lock.holds, lock.erase = {}, holds.erase
    local all = redis.call('HGETALL', lock_key)
    for i = 1, #all, 2 do
      if string.sub(all[i], 1, 2) == 'h:' then
        local request = string.sub(all[i], 3)
        local hold = {deadline = string.sub(all[i + 1], 1, 13), lease = string.sub(all[i + 1], 15)}
        lock.holds[request] = hold
        if hold.deadline <= now then
          holds.drop(request)
          ended[#ended + 1] = client_of(request)
          changed = true
        elseif hold.deadline - now > hold.lease + 0 then
          hold.deadline, hold.changed = (now + hold.lease) .. '', true
          changed = true
        end
      end
    end
    if lock.count == 0 then
      lock.deadline = FREE
    elseif changed then
      holds.write()
    end
    return ended
  end

  return holds
end

-- Drops the holds whose deadline is past, and clamps a deadline beyond now + its lease: the server's clock was set
-- back, and a dead holder never mends it. The records of clients whose holds are over go with them, but for that of
-- the caller, which is awake: at once or, when no hold is left, by `lock.forget`, after the first write of what follows.
-- Returns until when the caller's request holds; nil if it doesn't.
local function settle(lock_key, clients_key, lock, now, request)
  if lock.count == 0 then
    return nil
  end
  local ended
  if lock.count == 1 and lock.deadline <= now then
    lock.count, lock.deadline = 0, FREE
    ended = {client_of(lock.request)}
  else
    local f = redis.call('HMGET', lock_key, 'owner', 'lease', 'pushed')
    lock.owner, lock.lease, lock.pushed = f[1], f[2], f[3]
    if lock.count > 1 then
      ended = define_holds(lock_key, lock, now).read()
    elseif lock.deadline - now > lock.lease + 0 then
      lock.deadline = (now + lock.lease) .. ''
      define_holds(lock_key, lock, now).write()
    end
  end
  if ended and clients_key then
    local function forget()
      local caller = client_of(request)
      for _, client in ipairs(ended) do
        if client ~= caller then
          redis.pcall('ZREM', clients_key, client)
        end
      end
      lock.forget = nil
    end
    if lock.count == 0 then
      lock.forget = forget
    else
      forget()
    end
  end
  if lock.holds then
    return lock.holds[request] and lock.holds[request].deadline
  elseif lock.count == 1 and lock.request == request then
    return lock.deadline
  end
end
