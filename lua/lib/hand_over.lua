-- Finds the new holder of a free lock, which is the first reachable request in the queue, and tells that
-- request's client alone.
--
-- ZPOPMIN is the first write of a hand-over. It is right whatever follows, the server allows it without
-- memory, and if no write can pass, the script ends there with nothing done. PUBLISH comes next, and only
-- then the writes, of which none can fail any more. The request of a client that cannot be reached stays
-- removed, and comes back with its ticket when the client asks again.
--
-- The script asks whether a client listens before it sends the push. The number of receivers that PUBLISH
-- returns would come too late: a message also reaches subscribers at the server's replicas, which are not
-- counted. The lock would pass on, although the first request has heard that it holds the lock.
--
-- `channel_prefix` is the start of the clients' unlock channels. A letter stands before it, and says how to
-- publish and whether the subscribers are counted.
local PUBSUB_MODE, PREFIX = 1, 2
-- The script calls PUBLISH. A client without a subscriber here cannot be reached.
local PLAIN = 'p'
-- It calls SPUBLISH, in a cluster from 7.0 on. Otherwise as before.
local SHARDED = 's'
-- It calls SPUBLISH where the slot has moved to recently: its subscribers are still on their way, so none are
-- counted.
local MIGRATING = 'm'
-- With any other letter (u), it calls PUBLISH in an older cluster, where subscribers at its other nodes are
-- not counted.

-- The first word of a push is its version: a grant, or the only word of the message that a lock was released
-- but stays taken (release.lua), or, before the fence of its hold, the message that a lock is wanted
-- (wanted.lua).
local PUSH_VERSION, KEPT_PUSH, WANTED_PUSH = '1', '2', '3'

-- A call removes at most so many requests before it answers incomplete, because all other clients wait while
-- a script runs. Of permits, it also looks at so many timers at most.
local BOUND = 100

