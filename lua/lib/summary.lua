-- A lock's summary, the field `hold` of its hash:
--
--   <until> <lease> <pushed> <has_waiters> <holds> <fence> <request>
--   1       15      24       26       28      30      47
--
-- `until` is the latest deadline. It is all zeros after a release, and then the rest describes the last hold.
-- `lease` is the lease of `request`, by which the owner became the owner. `pushed` is 1 until its first
-- renewal. `has_waiters` is 0 only when nobody is queued: the first request in an empty queue makes it 1, and
-- a release of the lock that finds the queue empty makes it 0. `holds` is 1, or + for more (holds.lua). All
-- fields but the request have one width, so each field begins where the numbers say, and times compare as
-- strings. They have digits alone, because a server compares strings by its locale. The summary of a newer
-- format begins with a letter, which comes after the digits.
--
-- A script runs its definitions again on each call. Each costs as much as half a command, with the outer
-- variables that it uses. The conversion of a number into a string costs the same. So there are few
-- definitions, they come after the code that does not need them, and a value that comes as a string stays a
-- string. Constants, whose names are in capitals, cost nothing: they are replaced by their values before the
-- script is sent.
local FREE = '0'
local NEWER = 'a'
-- How long a key outlives its use. A server clock that is set back by less takes no fence back, and the next
-- script can still see whose hold ran out.
local RETENTION_MS = 60000
