//! What a connected client needs to know.

use std::time::Duration;

use crate::store::Durability;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// After so long a call, and an attempt to connect, counts as unanswered.
    pub(crate) attempt_timeout: Duration,
    /// For how long connecting is tried.
    pub(crate) server_timeout: Duration,
    /// A third of it may pass before a dead connection is noticed that nothing is called on.
    pub(crate) heartbeat: Duration,
    /// Over how many pairs of connections the locks are spread.
    pub(crate) connections: usize,
    /// Who must have a hold to confirm it; nobody: holds are never to be confirmed.
    pub(crate) durability: Durability,
}
