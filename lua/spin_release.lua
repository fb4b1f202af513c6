-- spin_release: gives one hold of the spin lock back.
--
-- Called by the spin lock's `unlock`.
--
-- Returns {status, owner, now, deadline, count}, times in ms of the server's clock:
--   1 given back; held `count` times still, 0: free
--   2 not this owner's (any more)
--
-- Writes the hash of the spin lock: owner -> count.

-- KEYS[1]  hash: the spin lock
local spin_key = KEYS[1]
-- ARGV[1]  string: the owner
local owner = ARGV[1]

local _, now_ms = server_clock()
if redis.call('HEXISTS', spin_key, owner) == 0 then
  return {2, owner, now_ms, 0, 0}
end
local count = redis.call('HINCRBY', spin_key, owner, -1)
if count == 0 then
  redis.call('DEL', spin_key)
end
return {1, owner, now_ms, now_ms + math.max(redis.call('PTTL', spin_key), 0), count}
