-- How much longer a key lives than it must, so that most calls need not prolong it.
local SLACK_MS = 10000

-- Makes sure that a key lives for at least `ms` and RETENTION_MS.
local function extend_ttl(key, ms)
  if redis.call('PTTL', key) < ms + RETENTION_MS then
    redis.call('PEXPIRE', key, string.format('%d', ms + RETENTION_MS + SLACK_MS))
  end
end

