//! The interface between a pipeline, its connections and its commands.

use std::fmt;
use std::pin::Pin;

use tokio::runtime::EnterGuard;

use crate::protocol::interface::{ConnectionId, Failure, Priority};
use crate::time::clock::{Clock, LocalTime};
use crate::time::deadline_queue::GivesUp;

/// One open connection. All clones are the same connection.
pub(crate) trait Wire: Clone + Send + Sync + 'static {
    type Command: Command;
    type Reply: Send + fmt::Debug + 'static;

    /// Writes a command at the first poll, and waits for its reply. Replies come in the order of the
    /// commands. Returns the reply with the time, by this clock, at which it was read.
    fn send(&self, command: Self::Command, clock: Clock) -> Reply<Self>;

    /// Enters the runtime of the connection, on which the timers of calls must run that another caller sends.
    /// The runtime of that caller may end before their replies come.
    fn enter(&self) -> Option<EnterGuard<'_>>;

    /// Loads the scripts into the server. A failure means that no call was executed.
    fn load(&self) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

    /// A PING with this nonce.
    fn ping(nonce: &str) -> Self::Command;

    /// Whether this is the reply to a PING with this nonce.
    fn echoes(reply: &Self::Reply, nonce: &str) -> bool;
}

pub(crate) type Told<R> = (Result<R, WireError>, LocalTime);
pub(super) type Reply<W> = Pin<Box<dyn Future<Output = Told<<W as Wire>::Reply>> + Send>>;

pub(crate) trait Command: fmt::Debug + Send + 'static {
    fn priority(&self) -> Priority;

    /// When the caller of this command gives up.
    fn gives_up(&self) -> GivesUp;

    /// Prepares the command to be written now, on this connection. Fails if it must not be written, because
    /// its sender has given it up ([`Failure::GivenUp`]) or holds it back.
    fn prepare(self, on: ConnectionId) -> Result<Self, Failure>
    where
        Self: Sized;
}

/// The reason why there is no reply.
#[derive(Debug)]
pub(crate) struct WireError {
    pub(crate) failure: Failure,
    pub(crate) kind: WireErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireErrorKind {
    /// The server does not know the script.
    NoScript,
    /// The server is a replica.
    ReadOnly,
    /// There was no reply in time.
    Timeout,
    Other,
}
