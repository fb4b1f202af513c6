-- withdraw: removes the queue entries and the holds of requests that will not be used again, and hands the
-- lock over if one of them was the last hold.
--
-- Called in the background for requests that were cancelled, timed out, or granted too late. A second call
-- changes nothing.
--
-- Returns `status request now deadline denied incomplete`, times in ms of the server's clock, for the first
-- of the requests:
--   1 withdrawn
--   5 elsewhere      nothing done: somebody may be queued, and this is a call for the lock alone
--   0 newer format   nothing done
-- `denied`: 1 if the ACL refused a push. `incomplete`: 1 if a bound was reached with the lock free: call
-- again.
--
-- Writes the queue; the lock when a hold ends, and the clients as it hands over.
-- Publishes to the next request in the queue.

-- KEYS[1]  hash: the lock
-- KEYS[2]  sorted set: the queue, request -> ticket (µs). A call for the lock alone leaves out this key and
--          the next one (acquire.lua)
-- KEYS[3]  sorted set: the clients, client -> alive until (ms)
local lock_key, queue_key, clients_key = KEYS[1], KEYS[2], KEYS[3]
-- ARGV[1]  string: the requests, of one client, with a space between two; 1,000 at most
-- ARGV[2]  string: the start of the clients' channels (lib/hand_over.lua)
local requests, channel_prefix = ARGV[1], ARGV[2]

local all = {}
for request in string.gmatch(requests, '%S+') do
  all[#all + 1] = request
end
local request, summary = all[1], redis.call('HGET', lock_key, 'hold') or ''
if summary >= NEWER then
  return '0 ' .. request .. ' ' .. now .. ' 0'
end
if not queue_key and string.sub(summary, 26, 26) == '1' then
  return '5 ' .. request .. ' ' .. now .. ' 0 0 0'
end

local status, was_until = '1', string.sub(summary, 1, 13)
local lock = load_holds(lock_key, clients_key, summary, now, request)
local was_held, dropped = lock.count > 0, false
if queue_key then
  redis.call('ZREM', queue_key, unpack(all))
end
local only = was_held and not lock.holds and string.sub(lock.summary, 47)
for _, withdrawn in ipairs(all) do
  if withdrawn == only or lock.holds and lock.holds[withdrawn] then
    lock.drop(withdrawn)
    dropped = true
  end
end
if lock.count > 0 then
  if dropped then
    lock.write()
  end
  return '1 ' .. request .. ' ' .. now .. ' ' .. lock.deadline .. ' 0 0'
end
