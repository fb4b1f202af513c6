-- A lock's line, the field `hold` of its hash, and what a new holder of the lock is written with:
--
--   <until> <lease> <pushed> <holds> <fence> <request>
--   1       15      24       26      28      45
--
-- `until` is the latest deadline; zeros after a release, and then the rest tells of the last hold. `lease` is that of `request`,
-- by which the owner became the owner. `pushed` is 1 until its first renewal. `holds` is 1, or + for more (holds.lua). All but
-- the request have one width, so that each begins where the numbers say, and times compare as strings, in digits alone: a
-- server compares as its locale has it. The line of a newer format begins with a letter, which comes after the digits.
--
-- A script runs its definitions anew each time, and each costs as much as half a command with the variables of outside that it
-- uses; so does the turning of a number into a string. So there are few, and what comes as a string stays one.

local FREE = '0'
local NEWER = 'a'
-- How long a key outlives what it is for: a server clock set back by less takes no fence back, and the next script can tell
-- whose hold ran out.
local KEPT_MS = 60000

-- Sees to it that a key lives for so long and KEPT_MS at least. It lives 10 s longer, so that most calls need not prolong it.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms + KEPT_MS then
    redis.call('PEXPIRE', key, string.format('%d', ms + KEPT_MS + 10000))
  end
end

-- The fence of the next owner: larger than the last one, also when the clock was set back.
local function next_fence(line, now_us)
  local fence = string.sub(line, 28, 43)
  if fence >= now_us then
    return string.format('%d', fence + 1)
  end
  return now_us
end

-- Makes `request` the only holder of a lock that is free. `lock` is what `settle` returned, nil where it was not called.
-- Returns the line.
local function grant(lock_key, lock, deadline, lease_ms, pushed, fence, request)
  if lock and lock.holds then
    lock.erase()
  end
  local line = deadline .. ' ' .. lease_ms .. ' ' .. pushed .. ' 1 ' .. fence .. ' ' .. request
  redis.call('HSET', lock_key, 'hold', line)
  keep(lock_key, lease_ms)
  if lock and lock.forget then
    lock.forget()
  end
  return line
end
