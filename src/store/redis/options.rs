//! The options of a connected client.

use std::time::Duration;

use crate::store::Durability;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// How long a call or an attempt to connect may remain unanswered.
    pub(crate) attempt_timeout: Duration,
    /// How long connecting is tried.
    pub(crate) server_timeout: Duration,
    /// A dead connection without calls is noticed within a third of this time.
    pub(crate) heartbeat: Duration,
    /// The number of connection pairs over which the locks are spread.
    pub(crate) connections: usize,
    /// The replicas and disks that must confirm a hold. If there are none, holds need no confirmation.
    pub(crate) durability: Durability,
}
