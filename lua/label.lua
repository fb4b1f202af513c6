-- label: sets the label of a client, or reads it.
--
-- A client sets its label when it starts, and again as long as it lives. A lock's `status`, and a list of
-- locks, read the label of the client that holds the lock. No other script looks at it.
--
-- Returns `status client now 0 label`. The status is one of these:
local LABELLED = '1'
local NO_LABEL = '2'  -- no label follows: the client is gone, or has not set it yet

-- KEYS[1]  hash: the client's label
local label_key = KEYS[1]
-- ARGV[1]  string: the client, which only names the call
-- ARGV[2]  string of printable ASCII without spaces: the label. A call that reads it leaves out this argument
--          and the next one
-- ARGV[3]  ms: how long the label is kept
local client, label, kept_ms = ARGV[1], ARGV[2], ARGV[3]

if label then
  redis.call('HSET', label_key, 'label', label)
  redis.call('PEXPIRE', label_key, kept_ms)
else
  label = redis.call('HGET', label_key, 'label')
end
if not label then
  return NO_LABEL .. ' ' .. client .. ' ' .. now .. ' 0'
end
return LABELLED .. ' ' .. client .. ' ' .. now .. ' 0 ' .. label
