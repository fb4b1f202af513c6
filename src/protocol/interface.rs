//! What a store and its user are to each other: servers, connections, answers, failures and reports.
//!
//! Every call names its request, so a call can be repeated: a second execution of the same call finds the
//! result of the first one. A missing reply means *unknown*. It never means "not done".

use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;

use crate::protocol::ids::RequestId;
use crate::protocol::keys::Keys;
use crate::time::clock::{Clock, LocalTime};
use crate::time::clock_offset::Sample;
use crate::time::deadline_queue::GivesUp;
use crate::time::server_time::ServerTime;
use crate::types::error::{Error, ServerError};
use crate::types::fence::Fence;

/// How far ahead of the time of the grant the fences of turns may be, in µs. A server that has lost a lock
/// grants it next under a fence that is ahead of its time by as much.
pub(crate) const TURNS_AHEAD_US: u64 = 2000;
/// How many fences a hold reserves beyond its own: one for each further turn that it may serve.
pub(crate) const RESERVED: u64 = 999;

/// A call that borrows nothing and is sent at its first poll. Calls reach the server in the order of their
/// first polls, even if the server had forgotten the scripts.
pub(crate) type Call<T> = StoreFuture<Answer<T>>;
/// What comes of something that is asked for.
pub(crate) type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// A future that does its work for as long as it is polled.
pub(crate) type KeepAlive = Pin<Box<dyn Future<Output = Infallible> + Send>>;
/// Takes the answers of calls that are made again and again.
pub(crate) type OnAnswer = Box<dyn Fn(Answer<()>) + Send>;

/// Identifies one server of a store. Clocks and connections belong to one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ServerId(pub(crate) u32);

/// One connection to a server, by its number in this client. The server executes and answers commands in the
/// order in which they are written on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionId {
    pub(crate) server: ServerId,
    pub(crate) number: u64,
}

/// A reply, with the times that turn its deadlines into local ones.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    pub(crate) on: ConnectionId,
    pub(crate) at: Sample,
    pub(crate) reply: T,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) request: RequestId,
    pub(crate) fence: Fence,
    /// When the hold ends without a renewal.
    pub(crate) deadline: ServerTime,
    /// The call of another request made this grant. It lasts only for the claim window until it is renewed.
    pub(crate) pushed: bool,
    /// The slot of a single permit of a small capacity.
    pub(crate) slot: Option<u32>,
}

/// Reads the slot of a grant of permits: a number, or `-`. Returns `None` if the word is neither.
pub(crate) fn read_slot(word: &str) -> Option<Option<u32>> {
    match word {
        "-" => Some(None),
        number => number.parse().ok().map(Some),
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

/// Decides which waiting calls are sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// Keeps a hold, or concerns the connection. Such a call never waits for replies to other calls, so it is
    /// none that a program makes as often as it likes.
    Keep,
    /// Ends a hold or a wait, so that others can have the lock, or renews a hold because a caller asks for
    /// that.
    End,
    /// Asks for a lock with a ticket: the request has, or had, a place before all that have none yet.
    Return,
    /// Asks for a lock, or about locks.
    Ask,
}

/// Why there is no reply.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The call may have been executed, or may still be: a time-out or a broken connection.
    Unknown(ServerError),
    /// The call was not executed and may succeed later: the server is loading, busy, full, a replica, or does
    /// not know the scripts.
    NotExecuted(ServerError),
    /// The call will fail until somebody corrects the set-up: permissions, password, or a key that does not
    /// belong to fairlock. It was not executed, unless the data of its lock are damaged.
    Refused(ServerError),
    /// The call did nothing, and nobody waits for it any more: its caller gave up, or has what it asked for.
    /// It was not written, or the server read it too late. This says nothing about the server.
    GivenUp,
    Closed,
}

impl Failure {
    /// The failure of a call whose floor is too far ahead.
    pub(crate) fn clock_behind() -> Failure {
        Failure::Refused(ServerError::new(
            "the server's clock is more than a day behind the others",
        ))
    }
}

impl From<Failure> for Error {
    /// The error that a caller gets when there are no more retries.
    fn from(failure: Failure) -> Error {
        match failure {
            Failure::Unknown(e) | Failure::NotExecuted(e) => Error::Unavailable(e),
            Failure::Refused(e) => Error::Refused(e),
            Failure::GivenUp => Error::Unavailable(ServerError::new("given up before it was sent")),
            Failure::Closed => Error::Closed,
        }
    }
}

/// The connections of a store to one server, or what takes their place.
pub(crate) trait Connections: fmt::Debug + Send + Sync + 'static {
    /// The server of a lock, as far as it is known.
    fn server_of(&self, _keys: &Keys) -> ServerId {
        ServerId::default()
    }

    /// Where that server is, for people. `None` in memory.
    fn address_of(&self, _keys: &Keys) -> Option<String> {
        None
    }

    /// Lists some of the locks under a prefix, from this position on. Locks that nobody holds may be listed
    /// too, and a lock may be listed twice.
    fn list(&self, prefix: &str, from: Position) -> StoreFuture<Page>;

    /// Asks for the server time. The round trip does nothing else.
    fn time(&self) -> Call<()>;

    /// Subscribes to a channel, and is done when the server has confirmed it. The subscription survives
    /// reconnects until `unsubscribe`. A second subscription to the same channel has no effect.
    fn subscribe(&self, channel: Arc<str>) -> StoreFuture<()>;

    /// Ends a subscription without waiting for the server's reply. May be called outside a runtime.
    fn unsubscribe(&self, channel: &str);

    /// Fails if the server cannot confirm what this store was made to wait for.
    fn check(&self) -> StoreFuture<()> {
        Box::pin(ready(Ok(())))
    }

    /// Why the server of a key has answered no call since this time, or `None` if it has answered one. A
    /// store without connections always answers.
    fn why_unheard(&self, key: &str, since: LocalTime) -> Option<Failure> {
        let _ = (key, since);
        None
    }

    /// The local clock of the samples.
    fn clock(&self) -> Clock;

    /// Ends all connections. Unanswered and later calls fail with [`Failure::Closed`].
    fn close(&self);
}

/// Sets the deadline of an acquire at the moment when the call is written. So the time that a call waits in
/// this process does not make it late.
pub(crate) trait Stamp: fmt::Debug + Send + Sync {
    /// Called when the call is written on this connection. Returns the server time past which the call must
    /// do nothing, or `None` if the call must not be written any more. A call may be written several times,
    /// if it was not executed before.
    fn written(&self, on: ConnectionId) -> Option<ServerTime>;

    /// When the caller of this call gives up.
    fn gives_up(&self) -> GivesUp {
        GivesUp::Unknown
    }
}

/// A deadline that was fixed beforehand.
impl Stamp for ServerTime {
    fn written(&self, _: ConnectionId) -> Option<ServerTime> {
        Some(*self)
    }
}

/// Receives what a store reports by itself. The methods do not block, and may be called from any thread.
pub(crate) trait Listener: fmt::Debug + Send + Sync + 'static {
    /// A message arrived on a channel. The text is raw; [`Push::parse`](super::push::Push::parse) reads it.
    fn pushed(&self, from: ServerId, channel: &str, message: &str);

    /// There is another connection of this kind in the place of one that was lost. `server` is the server's
    /// address, for people.
    fn reopened(&self, _connection: &'static str, _server: &str) {}

    /// A connection to this server broke. The methods below are called when there is another connection.
    fn lost(&self, _server: ServerId) {}

    /// A server of a cluster does not serve the slot of this channel, and has no subscription to it any more.
    fn left(&self, _server: ServerId, _channel: &str) {}

    /// From now on, calls use another connection, which may lead to another server at the same address.
    /// Earlier clock offsets are void. The subscriptions are repeated, and then `reconnected` follows.
    fn replaced(&self, server: ServerId);

    /// All subscriptions are confirmed on another connection, or messages may have been lost in some other
    /// way. Earlier clock offsets are void, and every waiter for a lock of this server must ask again.
    fn reconnected(&self, server: ServerId);
}
