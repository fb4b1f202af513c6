//! The calls of a server: what each asks, and what it is answered.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::fence::Fence;
use crate::owner::Owner;
use crate::store::Stamp;
use crate::store::ids::RequestId;
use crate::store::keys::Keys;
use crate::time::server_time::{ServerTime, Ticket};

/// How an acquire takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Take the lock if no reachable waiter is in front; never queue.
    Try,
    /// Queue if the lock is held. The client's presence record stays as it is.
    Wait,
    /// The same, and write the client's presence record, or prolong it.
    Register,
    /// The same, but only prolong the record: without one the answer is [`Acquired::NotRegistered`]. Tells whether
    /// the server sees the client's subscription.
    Poll,
}

#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: RequestId,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// Tells past which server time this call must do nothing new.
    pub(crate) not_after: Arc<dyn Stamp>,
    /// The place that the request had before.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) heartbeat: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// The request holds, by this call or by an earlier grant.
    Granted(Grant),
    /// Somebody else holds.
    Contended(Contended),
    /// The call ran after its `not_after`: nothing was done.
    ExpiredCall,
    /// The client has no presence record: nothing was done, and all requests of its waitlist must come back with
    /// their tickets.
    NotRegistered {
        /// Whether the server sees a subscriber on the client's channel.
        seen: bool,
    },
    /// So many unreachable waiters were removed that the call stopped half-way: call again.
    Incomplete,
    /// The owner has as many holds as one may have: nothing was done.
    Full,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) request: RequestId,
    pub(crate) fence: Fence,
    /// When the hold ends unless it is renewed.
    pub(crate) deadline: ServerTime,
    /// By somebody else's call, so that it lasts for the claim window only until it is renewed.
    pub(crate) pushed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contended {
    /// The earliest time at which the lock can be free if nobody releases it, from now.
    pub(crate) ttl: Duration,
    /// The request's place in the queue; `None` for [`Mode::Try`].
    pub(crate) ticket: Option<Ticket>,
    /// How many are queued before this request, at most.
    pub(crate) ahead: u64,
    /// [`Mode::Poll`]: whether the server sees a subscriber on the client's channel.
    pub(crate) seen: bool,
    /// This call put the request into the queue (it was not there before).
    pub(crate) enqueued: bool,
    /// The server's ACL refuses this client's publishing: hand-overs to others fall back to their timers.
    pub(crate) denied: bool,
    /// The holder's grant, when the holder is another request of the same client: it may not have heard.
    pub(crate) own_grant: Option<Grant>,
}

#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: RequestId,
    pub(crate) what: ReleaseWhat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseWhat {
    /// The grant with this fence, and nothing else of the request: never a queue entry, never a newer grant.
    Grant(Fence),
    /// Every hold under this fence, whoever has it (the request only names the call).
    Force(Fence),
}

/// Takes back whatever these requests of one client have, queue entries and holds, for good: they are never
/// used again.
#[derive(Clone, Debug)]
pub(crate) struct Withdraw {
    pub(crate) keys: Arc<Keys>,
    /// One at least, and [`MAX_WITHDRAWN`] at most.
    pub(crate) requests: Vec<RequestId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Withdrawn {
    /// So many unreachable waiters were removed that a hand-over stopped half-way: call again.
    pub(crate) more: bool,
}

/// How many requests one call withdraws at most: one or two ms of the server.
pub(crate) const MAX_WITHDRAWN: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) outcome: ReleaseOutcome,
    /// The server's ACL refused to publish: waiters fall back to their timers.
    pub(crate) denied: bool,
    /// So many unreachable waiters were removed that the hand-over stopped half-way: call again.
    pub(crate) more: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    /// The last hold is gone: the lock is handed over, or free.
    Released,
    /// The owner has other holds still.
    OneFewer,
    /// Not held any more: the lease ran out, and nobody has had the lock since.
    Expired,
    /// Not held any more: the lock has changed hands, or was released already.
    Taken,
}

#[derive(Clone, Debug)]
pub(crate) struct Renew {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: RequestId,
    pub(crate) fence: Fence,
    pub(crate) lease: Duration,
    /// Never beyond this.
    pub(crate) cap: ServerTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Until(ServerTime),
    /// Not held any more: the lease ran out, and nobody has had the lock since.
    Expired,
    /// Not held any more: the lock has changed hands, or was released.
    Taken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Confirmed {
    pub(crate) renewed: Renewed,
    /// How many of those that are wanted have the renewal, and so the grant before it.
    pub(crate) got: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Inspect {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: RequestId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    pub(crate) holder: Option<Holding>,
    pub(crate) waiting: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) owner: Owner,
    pub(crate) fence: Fence,
    pub(crate) holds: u64,
    /// The latest of the holds' deadlines.
    pub(crate) deadline: ServerTime,
}

#[derive(Clone, Debug)]
pub(crate) struct SpinAcquire {
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: Owner,
    /// Names one hold to be: repeated calls for it count once.
    pub(crate) request: Uuid,
    pub(crate) lease: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinAcquired {
    /// Held, so many times.
    Held(u64),
    /// Somebody else's.
    Busy,
}

#[derive(Clone, Debug)]
pub(crate) struct SpinRelease {
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinReleased {
    /// Held so many times still; 0: free.
    Left(u64),
    /// Not this owner's (any more).
    NotHeld,
}
