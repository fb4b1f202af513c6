-- Everything about a lock beyond one hold that goes on: holds that are over, and the several holds of one
-- owner. From two holds on, each has a field `h:<request>` in the hash, `<deadline> <lease>`, and an entry in
-- `lock.holds`: request -> {deadline, lease}.
--
-- A client that did not even claim a grant that was pushed to it is dead or asleep, so it is noted absent,
-- unless it is the caller. `lock.absent` is the field `absent` as it is to be written. (Other holds may have
-- been meant to run out, and say nothing about their client.)

-- Drops the holds whose deadline is past, and clamps a deadline beyond now + its lease: the server's clock
-- was set back, and a dead holder never corrects its deadline. Notes the client of an unclaimed grant.
--
-- Returns the lock: its summary, the latest deadline (FREE without any), the number of its holds, and the
-- functions that change them. The second value is the deadline of the caller's request, or nil if that is not
-- a holder.
local function load_holds(lock_key, summary, now, request)
  local lock = {summary = summary, deadline = FREE, count = 0}
  if summary < NOT_RELEASED then
    return lock
  end
  local lease_ms, pushed = string.sub(summary, LEASE, LEASE_END), string.sub(summary, PUSHED, PUSHED)
  local has_waiters = string.sub(summary, HAS_WAITERS, HAS_WAITERS)
  local fence, first = string.sub(summary, FENCE, FENCE_END), string.sub(summary, REQUEST)
  local dropped, unclaimed = {}, nil
  lock.deadline, lock.count = string.sub(summary, UNTIL, UNTIL_END), 1

  -- Adds a hold to those of the owner, or prolongs one of them. The first hold gets an entry of its own when
  -- the second one comes.
  function lock.set_hold(request, deadline, ms)
    if request == first and not lock.holds then
      lock.deadline, lease_ms = deadline, ms
      return
    end
    lock.holds = lock.holds or {[first] = {deadline = lock.deadline, lease = lease_ms, changed = true}}
    if not lock.holds[request] then
      lock.count = lock.count + 1
    end
    lock.holds[request] = {deadline = deadline, lease = ms, changed = true}
  end

  -- Takes a hold away; `write` removes its field.
  function lock.drop(request)
    lock.count = lock.count - 1
    if lock.holds then
      lock.holds[request] = nil
      dropped[#dropped + 1] = request
    end
  end

  -- Removes the fields of all holds.
  function lock.delete_fields()
    for request in pairs(lock.holds) do
      dropped[#dropped + 1] = request
    end
    for _, request in ipairs(dropped) do
      redis.call('HDEL', lock_key, HOLD_FIELD .. request)
    end
    lock.holds = nil
  end

  -- Writes the holds of a lock that stays held, after any change of them. PEXPIRE comes first: an
  -- out-of-memory server lets it pass, and then whatever follows.
  function lock.write(claimed)
    local entries, latest = lock.holds, nil
    if entries then
      lock.deadline = FREE
      for request, hold in pairs(entries) do
        if hold.deadline > lock.deadline or (hold.deadline == lock.deadline and request < latest) then
          lock.deadline, latest = hold.deadline, request
        end
      end
      if not entries[first] then
        first, pushed = latest, NO
      end
      lease_ms = entries[first].lease
    end
    if claimed == first then
      pushed = NO
    end
    lock.summary = lock.deadline .. ' ' .. lease_ms .. ' ' .. pushed .. ' ' .. has_waiters .. ' '
      .. (lock.count > 1 and SEVERAL or ONE) .. ' ' .. fence .. ' ' .. first
    redis.call('PEXPIRE', lock_key, string.format('%d', lock.deadline - now + RETENTION_MS))
    redis.call('HSET', lock_key, 'hold', lock.summary)
    if lock.absent then
      redis.call('HSET', lock_key, 'absent', lock.absent)
    end
    if lock.count == 1 and entries then
      lock.delete_fields()
    elseif entries then
      for _, request in ipairs(dropped) do
        redis.call('HDEL', lock_key, HOLD_FIELD .. request)
      end
      for request, hold in pairs(entries) do
        if hold.changed then
          redis.call('HSET', lock_key, HOLD_FIELD .. request, hold.deadline .. ' ' .. hold.lease)
        end
      end
    end
    dropped = {}
  end

  local changed = false
  if string.sub(summary, HOLDS, HOLDS) == ONE then
    if lock.deadline <= now then
      lock.count, unclaimed = 0, pushed == YES
    elseif lock.deadline - now > lease_ms + 0 then
      lock.deadline, changed = string.format('%d', now + lease_ms), true
    end
  else
    lock.holds, lock.count = {}, 0
    local all = redis.call('HGETALL', lock_key)
    for i = 1, #all, 2 do
      local field, value = all[i], all[i + 1]
      if string.sub(field, KIND, KIND_END) == HOLD_FIELD then
        local holder = string.sub(field, HOLDER)
        local deadline, ms = string.sub(value, UNTIL, UNTIL_END), string.sub(value, LEASE, LEASE_END)
        lock.holds[holder], lock.count = {deadline = deadline, lease = ms}, lock.count + 1
        if deadline <= now then
          lock.drop(holder)
          unclaimed, changed = unclaimed or (holder == first and pushed == YES), true
        elseif deadline - now > ms + 0 then
          deadline, changed = string.format('%d', now + ms), true
          lock.holds[holder] = {deadline = deadline, lease = ms, changed = true}
        end
      end
    end
  end

  local client = string.sub(summary, REQUEST, REQUEST_CLIENT_END)
  if unclaimed and client ~= string.sub(request, CLIENT, CLIENT_END) then
    local noted = has_waiters == ABSENT and redis.call('HGET', lock_key, 'absent') or ''
    has_waiters, lock.absent = ABSENT, client .. ' ' .. string.sub(noted, CLIENT, MOST_ABSENT)
    lock.summary = string.sub(summary, UNTIL, HAS_WAITERS - 1) .. ABSENT .. string.sub(summary, HOLDS - 1)
  end
  if lock.count == 0 then
    lock.deadline = FREE
    return lock
  end
  if changed then
    lock.write()
  end
  if lock.holds then
    return lock, lock.holds[request] and lock.holds[request].deadline
  end
  return lock, request == first and lock.deadline or nil
end
