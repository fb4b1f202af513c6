//! What a lock needs of a server, as requests and replies: the seam of this crate. Above it there is no
//! Redis, below it no waiting.
//!
//! Every call names its request, so that it can be repeated: a second execution of the same call finds what
//! the first one did. A reply that does not come means *unknown*, never "not done".

mod calls;
pub(crate) mod ids;
pub(crate) mod keys;
pub(crate) mod memory;
#[cfg(any(feature = "redis", test))]
pub(crate) mod pipeline;
mod push;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::calls::{
    Acquire, Acquired, Confirmed, Contended, Grant, Holding, Inspect, Inspected, MAX_WITHDRAWN, Mode,
    Release, ReleaseOutcome, ReleaseWhat, Released, Renew, Renewed, SpinAcquire, SpinAcquired, SpinRelease,
    SpinReleased, Withdraw, Withdrawn,
};
pub(crate) use self::push::Push;
use crate::error::{Error, ServerError};
use crate::store::keys::Keys;
use crate::time::clock::Clock;
use crate::time::clock_offset::Sample;
use crate::time::deadline_queue::GivesUp;
use crate::time::server_time::ServerTime;

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
    pub(crate) at: Sample,
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

/// Who must have a grant before it counts; nobody: it counts at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Durability {
    pub(crate) replicas: u32,
    /// On their disks, and on the primary's.
    pub(crate) fsynced: bool,
}

impl Durability {
    /// How many servers must confirm.
    pub(crate) fn wanted(self) -> u32 {
        self.replicas.saturating_add(u32::from(self.fsynced))
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

impl From<Failure> for Error {
    /// What it is to a caller, once retrying is over.
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Unknown(e) | Failure::NotExecuted(e) => Error::Unavailable(e),
            Failure::Refused(e) => Error::Refused(e),
            Failure::Closed => Error::Closed,
        }
    }
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

    /// The local clock that samples are told in.
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

    /// Calls go by another connection from now on, perhaps to another server of that address. ClockOffset of
    /// before are void. The subscriptions are made anew, and `reconnected` follows.
    fn replaced(&self, server: ServerId);

    /// All subscriptions are confirmed anew, by another connection; or messages may have been lost in some
    /// other way. ClockOffset of before are void, and everybody who waits for its locks must ask again.
    fn reconnected(&self, server: ServerId);
}
