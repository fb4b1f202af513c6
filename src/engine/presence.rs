//! Presence: for each lock, whether the server believes that it can push grants to this client.
//!
//! The server keeps a presence record for each client that waits for a lock. A call that registers writes it,
//! and polls prolong it. A hand-over skips every request whose client has no presence record. So a call in
//! mode `Wait`, which relies on the presence record, is sent only while it is certain that there is one.
//!
//! The script could look for the record in every call that queues, and the client would need to know nothing
//! of it. But that would cost the server 5 % more instructions for a hand-over and the acquire after it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::protocol::Mode;
use crate::protocol::keys::Keys;
use crate::sync::locked;
use crate::time::clock::LocalTime;
use crate::time::deadline::expired_on_server_by;

/// What a client knows of its presence records on its servers.
#[derive(Debug)]
pub(super) struct Presence {
    epoch: AtomicU64,
    /// The local times by which leases of this client that expire without a release are over on the server,
    /// by the lock's own key.
    expired_leases: Mutex<HashMap<String, LocalTime>>,
    poll_interval: Duration,
}

/// When a waitlist's presence record was written or prolonged. The server keeps the presence record for a
/// heartbeat, which is three polling intervals at least. The client relies on it for one, so that the next
/// poll covers every waiter that joins meanwhile.
///
/// A waitlist forgets it when an acquire call is incomplete, or fails without having been given up. It also
/// does so when a call in mode `Register` or `Poll` is granted the lock, because a grant writes no presence
/// record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registration {
    pub(super) since: LocalTime,
    /// [`Presence::epoch`] when the call was prepared.
    pub(super) epoch: u64,
}

impl Presence {
    pub(super) fn new(poll_interval: Duration) -> Presence {
        Presence {
            epoch: AtomicU64::new(0),
            expired_leases: Mutex::default(),
            poll_interval,
        }
    }

    /// The presence epoch: how often this client may have lost its presence records with a connection, or was
    /// told that one is gone. After it has changed, the next request of a waitlist registers again.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Notes that the presence records may be gone.
    pub(crate) fn lost(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that a lease expires on the server without a release. `lease` is its length, and `deadline` its
    /// local end. The next script that notices takes this client for dead, and deletes its presence record
    /// for that lock.
    pub(super) fn lease_expires(&self, keys: &Keys, now: LocalTime, deadline: LocalTime, lease: Duration) {
        let end = expired_on_server_by(deadline, lease);
        let mut expired = locked(&self.expired_leases);
        if expired.len() == expired.capacity() {
            // No presence record is relied on for longer than this.
            expired.retain(|_, end| end.after(self.poll_interval) > now);
            // All leases of a client can expire at once. As many new entries as are left now fit before the
            // next scan.
            let left = expired.len();
            expired.reserve(left + 1);
        }
        let latest = expired.entry(keys.lock.clone()).or_insert(end);
        *latest = end.max(*latest);
    }

    /// The local time by which the most recently expired lease of this lock is over on the server.
    pub(super) fn last_expiry(&self, keys: &Keys) -> Option<LocalTime> {
        locked(&self.expired_leases).get(&keys.lock).copied()
    }

    /// The mode in which a request for this lock is sent, given what is known of the presence record.
    pub(crate) fn mode(
        &self,
        keys: &Keys,
        now: LocalTime,
        known: Option<Registration>,
        is_poll: bool,
    ) -> Mode {
        let (epoch, expiry) = (self.epoch(), self.last_expiry(keys));
        match known.filter(|known| known.epoch == epoch) {
            // The reply to a poll says whether the presence record still exists.
            Some(_) if is_poll => Mode::Poll,
            Some(known)
                if expiry.is_none_or(|end| end <= known.since)
                    && now.since(known.since) < self.poll_interval =>
            {
                Mode::Wait
            }
            _ => Mode::Register,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL_INTERVAL: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> LocalTime {
        LocalTime::ZERO.after(Duration::from_secs(seconds))
    }

    #[test]
    fn last_of_the_expired_leases_of_a_lock_counts() {
        let presence = Presence::new(POLL_INTERVAL);
        let keys = Keys::new("fairlock", "a").unwrap();
        for deadline in [at(5), at(30), at(5)] {
            presence.lease_expires(&keys, at(0), deadline, Duration::ZERO);
        }
        let last = expired_on_server_by(at(30), Duration::ZERO);
        assert_eq!(presence.last_expiry(&keys), Some(last));
    }

    #[test]
    fn long_expired_leases_are_dropped() {
        let presence = Presence::new(POLL_INTERVAL);
        let now = at(0).after(2 * POLL_INTERVAL);
        for n in 0..1_000 {
            let keys = Keys::new("fairlock", &format!("{n}")).unwrap();
            presence.lease_expires(&keys, now, at(0), Duration::ZERO);
        }
        let recently = Keys::new("fairlock", "recently").unwrap();
        presence.lease_expires(&recently, now, now, Duration::ZERO);
        let last = expired_on_server_by(now, Duration::ZERO);
        assert_eq!(presence.last_expiry(&recently), Some(last));
        assert!(locked(&presence.expired_leases).len() < 10);
    }
}
