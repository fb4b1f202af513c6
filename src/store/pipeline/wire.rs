//! The interface between a pipeline, its connections and its commands.

use std::fmt;
use std::pin::Pin;

use tokio::runtime::EnterGuard;

use crate::store::{Acquire, ConnectionId, Failure};
use crate::time::deadline_queue::GivesUp;

/// One open connection. All clones are the same connection.
pub(crate) trait Wire: Clone + Send + Sync + 'static {
    type Command: Command;
    type Reply: Send + fmt::Debug + 'static;

    /// Writes a command at the first poll, and waits for its reply. Replies come in the order of the
    /// commands.
    fn send(&self, command: Self::Command) -> Reply<Self>;

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

pub(super) type Reply<W> = Pin<Box<dyn Future<Output = Result<<W as Wire>::Reply, WireError>> + Send>>;

pub(crate) trait Command: fmt::Debug + Send + 'static {
    fn priority(&self) -> Priority;

    /// When the caller of this command gives up.
    fn gives_up(&self) -> GivesUp;

    /// Prepares the command to be written now, on this connection. Returns `None` if its sender has given it
    /// up and it must not be written.
    fn prepare(self, on: ConnectionId) -> Option<Self>
    where
        Self: Sized;
}

/// Decides which waiting calls are sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// Keeps a hold, or concerns the connection. Such a call never waits for replies to other calls.
    Keep,
    /// Ends a hold or a wait, so that others can have the lock.
    End,
    /// Asks for a place in a queue that its client had before. Those without a place would overtake it.
    Return,
    /// Asks for a lock.
    Ask,
}

impl Priority {
    pub(crate) fn of(call: &Acquire) -> Priority {
        if call.has_place() {
            Priority::Return
        } else {
            Priority::Ask
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::fence::Fence;
    use crate::store::Mode;
    use crate::store::ids::{ClientId, RequestId};
    use crate::store::keys::Keys;
    use crate::time::server_time::{ServerTime, Ticket};

    #[test]
    fn calls_of_requests_with_a_place_go_before_those_that_ask_for_one() {
        let time = Duration::from_secs(1);
        let new = Acquire {
            keys: Arc::new(Keys::new("fairlock", "a").unwrap()),
            request: RequestId::new(&ClientId::from_number(1), time, 1, None),
            mode: Mode::Register,
            lease: time,
            not_after: Arc::new(ServerTime::MAX),
            ticket: None,
            heartbeat: time,
            floor: None,
        };
        let returns = Acquire {
            ticket: Some(Ticket(1)),
            ..new.clone()
        };
        // It may not overtake the first call of its own request.
        let first_poll = Acquire {
            mode: Mode::Poll,
            ..new.clone()
        };
        let in_a_quorum = Acquire {
            floor: Fence::new(1),
            ..returns.clone()
        };
        let priorities = [new, first_poll, returns, in_a_quorum].map(|call| Priority::of(&call));
        let expected = [Priority::Ask, Priority::Ask, Priority::Return, Priority::Ask];
        assert_eq!(priorities, expected);
    }
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
