-- A lock's line, the field `hold` of its hash:
--
--   <until> <lease> <pushed> <has_waiters> <holds> <fence> <request>
--   1       15      24       26       28      30      47
--
-- `until` is the latest deadline; zeros after a release, and then the rest tells of the last hold. `lease` is that of `request`,
-- by which the owner became the owner. `pushed` is 1 until its first renewal. `has_waiters` is 0 when nobody is queued, for sure; who
-- is queued first makes it 1, and who releases the lock and finds nobody makes it 0. `holds` is 1, or + for more (holds.lua). All but
-- the request have one width, so that each begins where the numbers say, and times compare as strings, in digits alone: a
-- server compares as its locale has it. The line of a newer format begins with a letter, which comes after the digits.
--
-- A script runs its definitions anew each time, and each costs as much as half a command with the variables of outside that it
-- uses; so does the turning of a number into a string. So there are few, they come behind what does not need them, and what comes
-- as a string stays one.

local FREE = '0'
local NEWER = 'a'
-- How long a key outlives what it is for: a server clock set back by less takes no fence back, and the next script can tell
-- whose hold ran out.
local RETENTION_MS = 60000
