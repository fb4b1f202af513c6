//! The interface between a pipeline, its connections and its commands.

use std::fmt;

use crate::protocol::interface::{ConnectionId, Failure, Priority};
use crate::servers::redis::connection::Told;
use crate::time::deadline_queue::GivesUp;

/// One open connection. All clones are the same connection.
pub(crate) trait Wire: Clone + Send + Sync + 'static {
    type Command: Command;
    type Reply: Send + fmt::Debug + 'static;

    /// Sends a command behind all earlier ones, with what must be told of its reply. Replies come in the
    /// order of the commands. A connection that has ended drops both.
    fn send(
        &self,
        command: Self::Command,
        told: impl FnOnce(Self::Command) -> Told<Self::Reply> + Send + 'static,
    );

    /// Loads the scripts into the server in the background. A failure means that no call was executed.
    fn load(&self, then: impl FnOnce(Result<(), Failure>) + Send + 'static);
}

pub(crate) trait Command: fmt::Debug + Send + 'static {
    fn priority(&self) -> Priority;

    /// When the caller of this command gives up.
    fn gives_up(&self) -> GivesUp;

    /// Prepares the command to be sent now, on this connection. Fails if it must not be sent, because its
    /// sender has given it up ([`Failure::GivenUp`]).
    fn prepare(&mut self, on: ConnectionId) -> Result<(), Failure>;
}
