-- A lock's summary, the field `hold` of its hash:
--
--   <until> <lease> <pushed> <has_waiters> <holds> <fence> <request>
--
-- `until` is the latest deadline. It is all zeros after a release, and then the rest describes the last hold.
-- `lease` is the lease of `request`, by which the owner became the owner. `pushed` is YES until its first
-- renewal. `has_waiters` is NO only when nobody is queued: the first request in an empty queue makes it YES,
-- and a release of the lock that finds the queue empty makes it NO. It is ABSENT if, besides, clients are
-- noted absent. `holds` is ONE or SEVERAL (holds.lua).
-- All words but the request have one width, so each has its position, and times compare as strings. They
-- have digits alone, because a server compares strings by its locale. (Why all is written like this: "Lean"
-- in lua/README.md.)

-- The positions of the words. A request begins with its client. At MARK it has a KEPT, a
-- RETAINED or a colon.
local UNTIL, UNTIL_END = 1, 13
local LEASE, LEASE_END = 15, 24
local PUSHED = 26
local HAS_WAITERS = 28
local HOLDS = 30
local FENCE, FENCE_END = 32, 47
local REQUEST, REQUEST_CLIENT_END, MARK = 49, 80, 92

local RELEASED_UNTIL = '0000000000000'
local YES, NO, ABSENT = '1', '0', '2'
local ONE, SEVERAL = '1', '+'

-- Summaries compare as strings too. The least is '', where there is no lock. Then come the locks that were
-- released, those that were not, and those of a newer format, whose summary begins with a small letter.
local NOT_RELEASED = '1'
local NEWER = 'a'
-- The status of the reply for a lock of a newer format. The script has done nothing.
local NEWER_FORMAT = '0'

-- The positions of the parts of a request, `<client>:<claim_ms>:<n>:<owner>`. The owner is counted from the
-- end, and is missing if a request is its own owner: then its last character is the colon. A lock that was
-- released but stays taken is held by `<client>:<claim_ms>=<n>:`. The request of a client that may retain the
-- lock without using it is `<client>:<claim_ms>+<n>:`.
local CLIENT, CLIENT_END = 1, 32
local CLAIM_MS, CLAIM_MS_END = 34, 43
local NUMBER = 45
local OWNER, LAST = -32, -1
local KEPT, RETAINED = '=', '+'

-- The field of a hold has this before its request. Its words begin as those of a summary.
local HOLD_FIELD, KIND, KIND_END, HOLDER = 'h:', 1, 2, 3

-- The field `absent` names the clients that are noted absent: `<client> <client> `, with the last one first.
-- Their requests are passed over until they call again. A note that is lost costs the others one more claim
-- window, so the field keeps 100 of them, and counts only while somebody is queued. This is its length before
-- the last note.
local MOST_ABSENT = 3267

-- The deadline of a lock that nobody holds.
local FREE = '0'
-- How far a floor, the least fence that a call in a quorum asks for, may be ahead of the server's clock. The
-- fences of a lock never come back, so one wrong clock must not take them far ahead.
local MAX_AHEAD_US = 86400000000
-- How long a key outlives its use. A server clock that is set back by less takes no fence back, and the next
-- script can still see whose hold ran out.
local RETENTION_MS = 60000
