//! What a look at a lock must show.

use std::ops::RangeInclusive;
use std::time::Instant;

use super::dump::Data;
use super::server::{Reply, Seen};
use super::step::{SHORTEST_HEARTBEAT_MS, SPIN_LEASES_MS};
use crate::store::memory::lock::RETENTION_MS;
use crate::time::server_time::millis;

/// No key of a run is kept longer.
const LONGEST_LIFE_MS: u64 = SPIN_LEASES_MS[1];

/// Compares a reply with that of the rules.
pub(super) type Check = Box<dyn FnOnce(Reply)>;

pub(super) struct Expected {
    /// Of the reply to the call before it.
    pub(super) reply: Option<Check>,
    pub(super) data: Data,
    /// For how long the server must keep the hash at least, if it was written just now.
    pub(super) kept_ms: Option<u64>,
    pub(super) pushes: Vec<(String, String)>,
}

impl Expected {
    /// The reply, the data, the pushes, and that every key has a life of its own that is long enough: nothing
    /// was written before `started`.
    pub(super) fn compare(self, seen: Seen, started: Instant) {
        if let Some(check) = self.reply {
            check(seen.reply.expect("a reply to the call"));
        }
        assert_eq!(seen.data, self.data, "the data");
        assert_eq!(seen.messages, self.pushes, "the pushes");
        if let Some(kept_ms) = self.kept_ms {
            is_kept(
                "a lock just written",
                seen.kept_ms[0],
                kept_ms..=LONGEST_LIFE_MS,
                started,
            );
        }
        let records_ms = SHORTEST_HEARTBEAT_MS + RETENTION_MS;
        let shortest_ms = [RETENTION_MS, records_ms, records_ms, SPIN_LEASES_MS[0]];
        for ((data, kept_ms), shortest_ms) in seen.data.iter().zip(seen.kept_ms).zip(shortest_ms) {
            if data.is_empty() {
                assert!(kept_ms < 0, "{kept_ms} ms for a key that does not exist");
            } else {
                is_kept(data, kept_ms, shortest_ms..=LONGEST_LIFE_MS, started);
            }
        }
    }
}

/// Some time since then, by its own clock, the server was told to keep a key for so long.
fn is_kept(what: &str, kept_ms: i64, told_ms: RangeInclusive<u64>, since: Instant) {
    let elapsed_ms = millis(since.elapsed()) + 1;
    let kept = u64::try_from(kept_ms).unwrap_or_else(|_| panic!("no TTL: {what}"));
    assert!(
        told_ms.start().saturating_sub(elapsed_ms) <= kept && kept <= *told_ms.end(),
        "{kept} ms left of {told_ms:?} after at most {elapsed_ms} ms: {what}"
    );
}
