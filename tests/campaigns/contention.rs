//! What the campaigns `soak` and `quorum` share: client processes that contend for locks behind networks that
//! fail, and what is checked of them.
//!
//! - `client`: the client process, and `contender`: its place in a round, with its networks;
//! - `record`: the records of a process; `verdict`: their checks;
//! - `residue`: what is left on a server at the end;
//! - `table`: the table of a campaign.

pub(crate) mod client;
pub(crate) mod contender;
pub(crate) mod record;
pub(crate) mod residue;
pub(crate) mod table;
pub(crate) mod verdict;

use std::time::Duration;

use fairlock::{LockManager, LockManagerBuilder, Quorum};

pub(crate) const PREFIX: &str = "soak";

/// What each client process does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) locks: usize,
    /// The tasks of each process for each lock.
    pub(crate) tasks: usize,
    /// So many of the locks, the last ones, are taken with local hand-off by some of the tasks.
    pub(crate) local: usize,
    /// Short leases, so that faults often outlast them.
    pub(crate) lease: Duration,
    /// How long a server, or a quorum, may answer nothing before callers are told.
    pub(crate) server_timeout: Duration,
}

impl Load {
    pub(crate) const fn is_local(&self, lock: usize) -> bool {
        lock >= self.locks - self.local
    }

    fn settings(&self) -> LockManagerBuilder {
        LockManager::builder()
            .prefix(PREFIX)
            .lease(self.lease)
            .claim_window(self.lease / 2)
            .server_timeout(self.server_timeout)
    }

    /// Connects to a server, or to several as a quorum.
    pub(crate) async fn connect(&self, urls: &[String]) -> fairlock::Result<LockManager> {
        match urls {
            [url] => self.settings().connect(url).await,
            urls => {
                let quorum = Quorum::of(urls).longest_lease(self.lease);
                self.settings().connect_quorum(quorum).await
            }
        }
    }
}

pub(crate) fn lock_name(number: usize) -> String {
    format!("lock-{number}")
}

pub(crate) fn key(kind: &str, number: usize) -> String {
    format!("{PREFIX}:{kind}{{{}}}", lock_name(number))
}

/// An unsigned number from the environment.
pub(crate) fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text}: not a number")),
    )
}
