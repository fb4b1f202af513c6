//! How a server that stays away is reported.

use std::time::Duration;

use tokio::time::Instant;

use crate::protocol::interface::Failure;
use crate::types::error::Error;

const AGAIN: Duration = Duration::from_secs(60);

/// The time since the last connection was lost, or since the client began. Calls are told of the failure, and
/// so is the caller of `connect`. A client that nobody calls, or that connects lazily, says it in the log.
pub(super) struct Outage {
    report_at: Instant,
}

impl Outage {
    /// An outage that begins now, and is reported if it lasts for so long.
    pub(super) fn begin(patience: Duration) -> Outage {
        Outage {
            report_at: Instant::now() + patience,
        }
    }

    /// A further attempt has failed.
    pub(super) fn goes_on(&mut self, server: &str, failure: &Failure) {
        let now = Instant::now();
        if now >= self.report_at {
            self.report_at = now + AGAIN;
            let error = Error::from(failure.clone());
            tracing::warn!(server, %error, "there is still no connection");
        }
    }
}
