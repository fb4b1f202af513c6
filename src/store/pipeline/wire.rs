//! What a pipeline needs of a connection, and of the commands that go over it.

use std::fmt;
use std::pin::Pin;

use crate::store::{ConnectionId, Failure};
use crate::time::deadline_queue::GivesUp;

/// One open connection. Clones are the same one.
pub(crate) trait Wire: Clone + Send + Sync + 'static {
    type Command: Command;
    type Reply: Send + fmt::Debug + 'static;

    /// Has a command written at the first poll, and waits for its reply, which come in the order of the
    /// commands.
    fn send(&self, command: Self::Command) -> Reply<Self>;

    /// Has the server learn the scripts. A failure means that no call was executed.
    fn load(&self) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

    /// Asks for a sign of life, with the nonce in it.
    fn ping(nonce: &str) -> Self::Command;

    /// Whether this is the reply to that.
    fn echoes(reply: &Self::Reply, nonce: &str) -> bool;
}

pub(super) type Reply<W> = Pin<Box<dyn Future<Output = Result<<W as Wire>::Reply, WireError>> + Send>>;

/// What is sent to a server.
pub(crate) trait Command: fmt::Debug + Send + 'static {
    fn priority(&self) -> Priority;

    /// When its caller gives up.
    fn gives_up(&self) -> GivesUp;

    /// Makes it ready to be written now, on this connection. `None`: its sender has given it up, so it is not to
    /// be written.
    fn prepare(self, on: ConnectionId) -> Option<Self>
    where
        Self: Sized;
}

/// Which of those that wait are sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// What keeps a hold, or is about the connection: it never waits for others to be answered.
    Keep,
    /// What ends a hold or a wait: others can have the lock then.
    End,
    /// What asks for a lock.
    Ask,
}

/// Why there is no reply.
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
    /// No reply in time.
    Timeout,
    Other,
}
