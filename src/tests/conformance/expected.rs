//! The expected data, reply and pushes of a lock.

use std::ops::RangeInclusive;
use std::time::Instant;

use super::dump::Data;
use super::server::{Reply, Snapshot};
use super::step::SPIN_LEASES_MS;
use crate::protocol::rules::RETENTION_MS;
use crate::time::server_time::millis;

/// The longest time to live of a key in a run.
const LONGEST_LIFE_MS: u64 = SPIN_LEASES_MS[1];

/// Compares a reply with the one that the rules give.
pub(super) type Check = Box<dyn FnOnce(Reply)>;

pub(super) struct Expected {
    /// Checks the reply to the call before the snapshot.
    pub(super) reply: Option<Check>,
    pub(super) data: Data,
    /// The least time to live of the lock's hash, if it was written just now.
    pub(super) kept_ms: Option<u64>,
    pub(super) pushes: Vec<(String, String)>,
    /// The least time to live of the last key.
    pub(super) last_ms: u64,
}

impl Expected {
    /// Compares the reply, the data and the pushes. Every key must have a time to live that is long enough,
    /// given that nothing was written before `started`.
    pub(super) fn compare(self, snapshot: Snapshot, started: Instant) {
        if let Some(check) = self.reply {
            check(snapshot.reply.expect("a reply to the call"));
        }
        assert_eq!(snapshot.data, self.data, "the data");
        assert_eq!(snapshot.messages, self.pushes, "the pushes");
        if let Some(kept_ms) = self.kept_ms {
            assert_kept(
                "a lock just written",
                snapshot.kept_ms[0],
                kept_ms..=LONGEST_LIFE_MS,
                started,
            );
        }
        let shortest_ms = [RETENTION_MS, RETENTION_MS, self.last_ms];
        for ((data, kept_ms), shortest_ms) in snapshot.data.iter().zip(snapshot.kept_ms).zip(shortest_ms) {
            if data.is_empty() {
                assert!(kept_ms < 0, "{kept_ms} ms for a key that does not exist");
            } else {
                assert_kept(data, kept_ms, shortest_ms..=LONGEST_LIFE_MS, started);
            }
        }
    }
}

/// Checks the time to live of a key that was set to `told_ms` some time after `since`, by the server's own
/// clock.
fn assert_kept(what: &str, kept_ms: i64, told_ms: RangeInclusive<u64>, since: Instant) {
    let elapsed_ms = millis(since.elapsed()) + 1;
    let kept = u64::try_from(kept_ms).unwrap_or_else(|_| panic!("no TTL: {what}"));
    assert!(
        told_ms.start().saturating_sub(elapsed_ms) <= kept && kept <= *told_ms.end(),
        "{kept} ms left of {told_ms:?} after at most {elapsed_ms} ms: {what}"
    );
}
