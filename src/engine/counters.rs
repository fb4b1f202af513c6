//! Counts of events since the start.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) acquired: AtomicU64,
    pub(crate) handed_over: AtomicU64,
    pub(crate) local_handoffs: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) timed_out: AtomicU64,
    pub(crate) released_by_drop: AtomicU64,
    pub(crate) late: AtomicU64,
    /// In a quorum: votes whose fences were raised, that were given up for earlier requests, and that holds
    /// got later or again.
    pub(crate) raised: AtomicU64,
    pub(crate) yielded: AtomicU64,
    pub(crate) repaired: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
