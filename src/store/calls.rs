//! The calls to a server, and their replies.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::fence::Fence;
use crate::owner::Owner;
use crate::store::ids::{ClientId, RequestId};
use crate::store::keys::{Keys, label_key};
use crate::store::label::Label;
use crate::store::{ServerId, Stamp};
use crate::time::server_time::{ServerTime, Ticket};

/// How an acquire takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Take the lock if no reachable waiter is in front; never queue.
    Try,
    /// Queue if the lock is held. Leave the client's presence record as it is.
    Wait,
    /// Like `Wait`, and also write or prolong the client's presence record.
    Register,
    /// Like `Register`, but only prolong the presence record. Without one, the answer is
    /// [`Acquired::NotRegistered`]. The reply says whether the server sees the client's subscription.
    Poll,
}

#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: RequestId,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// Gives the server time past which this call must do nothing new.
    pub(crate) not_after: Arc<dyn Stamp>,
    /// The place that the request had before, if it had one.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) heartbeat: Duration,
    /// In a quorum: the least fence of a grant, which takes the place of the server's time. The ticket then
    /// counts as it is, even if it is later than the server's time.
    pub(crate) floor: Option<Fence>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// The request holds the lock, by this call or by an earlier grant.
    Granted {
        grant: Grant,
        /// This call granted the lock, and found the request in the queue.
        was_queued: bool,
    },
    /// Another owner holds the lock.
    Contended(Contended),
    /// The call ran after its `not_after`: nothing was done.
    ExpiredCall,
    /// The client has no presence record, and nothing was done. All requests of its waitlist must ask again
    /// with their tickets.
    NotRegistered {
        /// Whether the server sees a subscriber on the client's channel.
        seen: bool,
    },
    /// The call removed so many unreachable waiters that it stopped half-way. It must be repeated.
    Incomplete,
    /// The owner has the maximum number of holds, and nothing was done.
    Full,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) request: RequestId,
    pub(crate) fence: Fence,
    /// When the hold ends without a renewal.
    pub(crate) deadline: ServerTime,
    /// The call of another request made this grant. It lasts only for the claim window until it is renewed.
    pub(crate) pushed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contended {
    /// The time until the lock can be free at the earliest, if nobody releases it.
    pub(crate) ttl: Duration,
    /// The request's place in the queue; `None` for [`Mode::Try`].
    pub(crate) ticket: Option<Ticket>,
    /// An upper bound of the number of requests that are queued before this one.
    pub(crate) ahead: u64,
    /// For [`Mode::Poll`]: whether the server sees a subscriber on the client's channel.
    pub(crate) seen: bool,
    /// This call put the request into the queue. It was not queued before.
    pub(crate) enqueued: bool,
    /// The holder's grant, if the holder is another request of the same client. That request may not have
    /// received its push.
    pub(crate) own_grant: Option<Grant>,
}

#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: RequestId,
    pub(crate) what: ReleaseWhat,
    /// In a quorum: the least fence of the next owner, which takes the place of the server's time.
    pub(crate) floor: Option<Fence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseWhat {
    /// Releases the grant with this fence. Never removes a queue entry or a newer grant of the request.
    Grant(Fence),
    /// The same for a hold that has used several fences, from the first one to the last one.
    Turns { first: Fence, last: Fence },
    /// Releases the grant with this fence, but keeps the lock taken until the server time `until`, and for
    /// `at_least` at the longest. After that time it is a release as above.
    Keep {
        fence: Fence,
        at_least: Duration,
        until: ServerTime,
    },
    /// Releases every hold under this fence, of any request. The request only names the call.
    Force(Fence),
}

/// Removes the queue entries and holds of these requests of one client. The requests are never used again.
#[derive(Clone, Debug)]
pub(crate) struct Withdraw {
    pub(crate) keys: Arc<Keys>,
    /// Contains between one and [`MAX_WITHDRAWN`] requests.
    pub(crate) requests: Vec<RequestId>,
    /// As for a release.
    pub(crate) floor: Option<Fence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Withdrawn {
    /// The call removed so many unreachable waiters that a hand-over stopped half-way. It must be repeated.
    pub(crate) more: bool,
}

/// How many requests one call may withdraw. That many take one or two ms of the server.
pub(crate) const MAX_WITHDRAWN: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Released {
    pub(crate) outcome: ReleaseOutcome,
    /// The server's ACL does not let this client publish. Waiters depend on their timers.
    pub(crate) denied: bool,
    /// The call removed so many unreachable waiters that the hand-over stopped half-way. It must be repeated.
    pub(crate) more: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    /// The last hold is gone, and the lock is handed over or free.
    Released,
    /// The owner still has other holds.
    OneFewer,
    /// The request holds no longer: the lease expired, and nobody has had the lock since.
    Expired,
    /// The request holds no longer: the lock has another owner, or was released before.
    Taken,
}

#[derive(Clone, Debug)]
pub(crate) struct Renew {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: RequestId,
    pub(crate) fence: Fence,
    pub(crate) lease: Duration,
    /// The deadline never gets later than this.
    pub(crate) cap: ServerTime,
    /// A caller asks for it. The background renews the hold in time anyway.
    pub(crate) on_demand: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    Until(ServerTime),
    /// The request holds no longer: the lease expired, and nobody has had the lock since.
    Expired,
    /// The request holds no longer: the lock has another owner, or was released.
    Taken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Confirmed {
    pub(crate) renewed: Renewed,
    /// How many of the wanted servers have the renewal, and therefore the grant before it.
    pub(crate) got: u32,
}

/// Renews a hold in a quorum, before there are holds on a majority of the servers under one fence.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) renew: Renew,
    /// Raises a smaller fence to this one. The fence of `renew` itself raises nothing.
    pub(crate) floor: Fence,
    /// The place that the request has in the queues of all servers.
    pub(crate) ticket: Ticket,
}

impl Look {
    /// The floor, if it raises the fence.
    pub(crate) fn raises_to(&self) -> Option<Fence> {
        Some(self.floor).filter(|floor| *floor != self.renew.fence)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Looked {
    pub(crate) renewed: Renewed,
    /// The fence of the hold after the call. If the hold is gone, the fence that the call named.
    pub(crate) fence: Fence,
    /// The first request in the queue has an earlier ticket. Of equal tickets, that of the first client by id
    /// is earlier. Never true if the hold is gone.
    pub(crate) earlier: bool,
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
    /// The ticket of the first request in the queue.
    pub(crate) first: Option<Ticket>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) owner: Owner,
    /// The client of the request by which the owner holds the lock.
    pub(crate) client: ClientId,
    pub(crate) fence: Fence,
    pub(crate) holds: u64,
    /// The latest deadline of all holds.
    pub(crate) deadline: ServerTime,
    /// The lock was released, and is only kept taken until then.
    pub(crate) kept: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct SpinAcquire {
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: Owner,
    /// Names the future hold. Repeated calls with this id count once.
    pub(crate) request: Uuid,
    pub(crate) lease: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinAcquired {
    /// The owner holds the lock this many times.
    Held(u64),
    /// Another owner holds the lock.
    Busy,
}

#[derive(Clone, Debug)]
pub(crate) struct SpinRelease {
    pub(crate) keys: Arc<Keys>,
    pub(crate) owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinReleased {
    /// The owner still holds the lock this many times. 0 means that it is free.
    Left(u64),
    /// The owner does not hold the lock, or holds it no longer.
    NotHeld,
}

/// Sets the label of a client.
#[derive(Clone, Debug)]
pub(crate) struct SetLabel {
    pub(crate) key: String,
    pub(crate) client: ClientId,
    pub(crate) label: Label,
    /// How long the label is kept if it is not set again.
    pub(crate) kept: Duration,
}

/// Asks for the label of a client.
#[derive(Clone, Debug)]
pub(crate) struct GetLabel {
    pub(crate) key: String,
    pub(crate) client: ClientId,
}

impl GetLabel {
    pub(crate) fn of(prefix: &str, client: &ClientId) -> GetLabel {
        GetLabel {
            key: label_key(prefix, client),
            client: client.clone(),
        }
    }
}

/// How far a list of locks has got. The default is its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) server: ServerId,
    /// The server's own position, which is 0 at its start.
    pub(crate) cursor: u64,
}

/// A part of a list of locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    /// The keys of locks (`Keys::lock`).
    pub(crate) keys: Vec<String>,
    /// Where the next part begins, unless this is the last one.
    pub(crate) next: Option<Position>,
}
