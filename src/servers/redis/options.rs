//! The options of a connected client.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How long a call or an attempt to connect may remain unanswered.
    pub(crate) attempt_timeout: Duration,
    /// How long connecting is tried.
    pub(crate) server_timeout: Duration,
    /// How often a connection without calls is tested.
    pub(crate) ping_every: Duration,
    /// How many replicas must confirm a hold. With 0, holds need no confirmation.
    pub(crate) replicas: u32,
    /// What is known of the server, if it belongs to a quorum.
    pub(crate) quorum: Option<QuorumServer>,
}

/// A server of a quorum. All clients of a quorum must agree on this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuorumServer {
    /// No lease in the quorum is longer. In whole ms.
    pub(crate) longest_lease: Duration,
    /// The server answers a write only once it is on disk, so a restart forgets no hold.
    pub(crate) durable: bool,
}
