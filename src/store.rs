//! What a lock needs of a server, as requests and replies: the seam of this crate. Above it there is no
//! Redis, below it no waiting.
//!
//! Every call names its request, so that it can be repeated: a second execution of the same call finds what
//! the first one did. A reply that does not come means *unknown*, never "not done".

pub(crate) mod memory;
#[cfg(any(feature = "redis", test))]
pub(crate) mod pipeline;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::admission_queue::GivesUp;
use crate::clock::Clock;
use crate::error::ServerError;
use crate::key::{Keys, Owner, Request};
use crate::lease::{Exchange, Fence, ServerTime, Ticket};

/// A call under way. It borrows nothing, and it is sent at its first poll: calls that are first polled one
/// after the other reach the server in that order, also when the server had forgotten the scripts.
pub(crate) type Call<T> = Pin<Box<dyn Future<Output = Result<Answer<T>, Failure>> + Send>>;

/// Which server of a store's: clocks and connections belong to one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ServerId(pub(crate) u32);

/// One connection to a server, by its number in this client: what is written on it is executed in that order,
/// and answered in that order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionId {
    pub(crate) server: ServerId,
    pub(crate) number: u64,
}

/// A reply, with the times by which its deadlines become local ones.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    pub(crate) on: ConnectionId,
    pub(crate) at: Exchange,
    pub(crate) reply: T,
}

impl Answer<Renewed> {
    /// The same, now that so many servers are known to have it.
    fn confirmed(self, got: u32) -> Answer<Confirmed> {
        Answer {
            on: self.on,
            at: self.at,
            reply: Confirmed {
                renewed: self.reply,
                got,
            },
        }
    }
}

/// Why there is no reply.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Nobody knows whether the call was executed, or will be: a time-out, a broken connection.
    Unknown(ServerError),
    /// It was not executed and may succeed later: the server is loading, busy, full, a replica, out of
    /// scripts.
    NotExecuted(ServerError),
    /// It was not executed, and will not be until somebody mends the set-up: rights, password, a foreign key.
    Refused(ServerError),
    /// The store was closed.
    Closed,
}

/// One server, or what does the work of one.
pub(crate) trait Store: fmt::Debug + Send + Sync + 'static {
    /// Which server a lock lives on, as far as is known.
    fn server_of(&self, _keys: &Keys) -> ServerId {
        ServerId::default()
    }

    fn acquire(&self, call: Acquire) -> Call<Acquired>;
    fn release(&self, call: Release) -> Call<Released>;
    fn withdraw(&self, call: Withdraw) -> Call<Withdrawn>;
    fn renew(&self, call: Renew) -> Call<Renewed>;

    /// Renews, and waits until those have that whom the store was made for, but for no longer than `within`.
    /// Where there are no servers, none has it.
    fn confirm(&self, call: Renew, within: Duration) -> Call<Confirmed> {
        let _ = within;
        unreplicated(self.renew(call))
    }

    fn inspect(&self, call: Inspect) -> Call<Inspected>;
    fn spin_acquire(&self, call: SpinAcquire) -> Call<SpinAcquired>;
    fn spin_release(&self, call: SpinRelease) -> Call<SpinReleased>;

    /// Asks for the time: a round trip that does nothing else.
    fn time(&self) -> Call<()>;

    /// Subscribes to a channel: done once the server has confirmed it. It stays subscribed over reconnects
    /// until `unsubscribe`. Subscribing twice is as good as once.
    fn subscribe(&self, channel: Arc<str>) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

    /// Ends a subscription, without waiting for the server's word. Outside a runtime too.
    fn unsubscribe(&self, channel: &str);

    /// Has the connection of a subscription replaced, some time: the server does not see it, though it was
    /// confirmed, and confirmed again. So the connection may lead to another server.
    fn unseen(&self, channel: &str);

    /// The local clock that exchanges are told in.
    fn clock(&self) -> Clock;

    /// Ends all connections. Calls that are under way or come later fail with [`Failure::Closed`].
    fn close(&self);
}

/// By when an acquire must have run, which is told when the call is written: what waits for its turn in this
/// process is not late for it.
pub(crate) trait Stamp: fmt::Debug + Send + Sync {
    /// The call is written now, on this connection. Returns the server time past which it must do nothing; `None`
    /// if it is not to be written any more. A call may be written several times, if it was not executed
    /// before.
    fn written(&self, on: ConnectionId) -> Option<ServerTime>;

    /// When its caller gives up.
    fn gives_up(&self) -> GivesUp {
        GivesUp::Unknown
    }
}

/// One that was told before.
impl Stamp for ServerTime {
    fn written(&self, _: ConnectionId) -> Option<ServerTime> {
        Some(*self)
    }
}

/// A renewal that nobody was asked to confirm.
fn unreplicated(renewal: Call<Renewed>) -> Call<Confirmed> {
    Box::pin(async move { Ok(renewal.await?.confirmed(0)) })
}

/// What a store tells unasked. Its methods do not block, and may be called from any thread.
pub(crate) trait Listener: fmt::Debug + Send + Sync + 'static {
    /// A message came on a channel: the raw text, read by [`Push::parse`].
    fn pushed(&self, from: ServerId, channel: &str, message: &str);

    /// A connection to this server broke. Others of these calls follow when there is another one.
    fn lost(&self, _server: ServerId) {}

    /// Calls go by another connection from now on, perhaps to another server of that address. Anchors of
    /// before are void. The subscriptions are made anew, and `reconnected` follows.
    fn replaced(&self, server: ServerId);

    /// All subscriptions are confirmed anew, by another connection; or messages may have been lost in some
    /// other way. Anchors of before are void, and everybody who waits for its locks must ask again.
    fn reconnected(&self, server: ServerId);
}

/// How an acquire takes its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Take the lock if nobody who can be reached is in front; never queue.
    Try,
    /// Queue if it is held; the client's record is as it was.
    Wait,
    /// The same, and open the client's record (or prolong it).
    Open,
    /// The same, but only prolong the record: without one the answer is [`Acquired::Gone`]. Tells whether the
    /// server sees the client's subscription.
    Question,
}

#[derive(Clone, Debug)]
pub(crate) struct Acquire {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: Request,
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
    Late,
    /// The client has no record: nothing was done, and all requests of its room must come back with their
    /// tickets.
    Gone {
        /// Whether the server sees a subscriber on the client's channel.
        seen: bool,
    },
    /// So many unreachable waiters were removed that the call stopped half-way: call again.
    More,
    /// The owner has as many holds as one may have: nothing was done.
    Full,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) request: Request,
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
    /// [`Mode::Question`]: whether the server sees a subscriber on the client's channel.
    pub(crate) seen: bool,
    /// This call put the request into the queue (it was not there before).
    pub(crate) enqueued: bool,
    /// The server's ACL refuses this client's publishing: hand-overs to others fall back to their timers.
    pub(crate) denied: bool,
    /// The holder's grant, when the holder is another request of the same client: it may not have heard.
    pub(crate) sibling: Option<Grant>,
}

#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) keys: Arc<Keys>,
    pub(crate) request: Request,
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
    pub(crate) requests: Vec<Request>,
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
    pub(crate) request: Request,
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
    pub(crate) request: Request,
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

/// A message on an unlock channel: `<version> <fence> <deadline> <request>`, and what later versions add.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Push {
    pub(crate) grant: Grant,
}

impl Push {
    pub(crate) const VERSION: &str = "1";

    /// `None` for a version or a form that this client does not know: then it asks.
    pub(crate) fn parse(message: &str) -> Option<Push> {
        let mut parts = message.split(' ');
        if parts.next()? != Self::VERSION {
            return None;
        }
        let fence = Fence::new(parts.next()?.parse().ok()?)?;
        let deadline = ServerTime::from_ms(parts.next()?.parse().ok()?);
        let request = Request::from_wire(parts.next()?)?;
        Some(Push {
            grant: Grant {
                request,
                fence,
                deadline,
                pushed: true,
            },
        })
    }

    pub(crate) fn write(grant: &Grant) -> String {
        format!(
            "{} {} {} {}",
            Self::VERSION,
            grant.fence,
            grant.deadline.ms(),
            grant.request
        )
    }
}
