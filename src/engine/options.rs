//! The settings, their limits and their defaults.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::RESERVED;
use crate::protocol::keys::check_prefix;
use crate::protocol::label::Label;
use crate::time::deadline::{LeaseTerms, NOT_AFTER};
use crate::time::server_time::millis;
use crate::types::error::Invalid;

pub(crate) const MIN_LEASE: Duration = Duration::from_millis(100);
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time for which a lock can stay taken without a renewal.
const MAX_KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const MIN_AT_LEAST: Duration = Duration::from_millis(1);
const MIN_RETAIN: Duration = Duration::from_millis(1);
/// The default time for which a server of a quorum grants nothing after it starts.
pub(crate) const DEFAULT_LONGEST_LEASE: Duration = Duration::from_secs(60);
const DEFAULT_LEASE: Duration = Duration::from_secs(30);
const DEFAULT_CLAIM_WINDOW: Duration = Duration::from_secs(5);
const DEFAULT_SERVER_TIMEOUT: Duration = Duration::from_secs(10);
const MIN_SERVER_TIMEOUT: Duration = Duration::from_millis(100);
const DEFAULT_MAX_WAITERS: usize = 100_000;
const MAX_GROUP_BYTES: usize = 64;

/// A waiter whose message or place was lost waits for so long at most, however long a claim window is.
const LONGEST_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How often a connection without calls is tested, so that a dead one is noticed.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(5);

/// How often a client sets its label. The server keeps it for three times as long.
pub(crate) const LABEL_EVERY: Duration = Duration::from_secs(20);
/// How long a waitlist lasts after its last waiter, so that a busy lock does not subscribe again and again.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// How many waitlists without a waiter there may be.
pub(crate) const MAX_IDLE_WAITLISTS: usize = 1000;
/// Waiters that learned the same expiry time ask at random times within this span, rather than all at once.
pub(crate) const JITTER: Duration = Duration::from_millis(20);

/// The settings of a manager.
#[derive(Clone, Debug)]
pub(crate) struct ManagerOptions {
    pub(crate) prefix: String,
    pub(crate) lease: Duration,
    /// In a quorum: no lease may be longer.
    pub(crate) longest_lease: Option<Duration>,
    /// `None` means the default, or the lease if that is shorter.
    pub(crate) claim_window: Option<Duration>,
    pub(crate) server_timeout: Duration,
    pub(crate) max_waiters: usize,
    /// How many replicas must have a grant before it counts.
    pub(crate) replicas: u32,
    /// How many turns a hold may serve inside the process.
    pub(crate) local_handoffs: u32,
    /// For how long after its grant a lock may stay with its client without being used.
    pub(crate) retain: Option<Duration>,
    pub(crate) label: Label,
}

impl Default for ManagerOptions {
    fn default() -> ManagerOptions {
        ManagerOptions {
            prefix: "fairlock".to_owned(),
            lease: DEFAULT_LEASE,
            longest_lease: None,
            claim_window: None,
            server_timeout: DEFAULT_SERVER_TIMEOUT,
            max_waiters: DEFAULT_MAX_WAITERS,
            replicas: 0,
            local_handoffs: 1,
            retain: None,
            label: Label::of_this_process(),
        }
    }
}

impl ManagerOptions {
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        check_prefix(&self.prefix)?;
        if let Some(longest_lease) = self.longest_lease {
            check_span("longest_lease", longest_lease, MIN_LEASE, MAX_LEASE)?;
        }
        check_span("lease", self.lease, MIN_LEASE, self.longest_renewed())?;
        if let Some(claim_window) = self.claim_window {
            check_span("claim_window", claim_window, MIN_LEASE, self.lease)?;
        }
        check_span(
            "server_timeout",
            self.server_timeout,
            MIN_SERVER_TIMEOUT,
            MAX_LEASE,
        )?;
        turns(self.local_handoffs)?;
        if let Some(retain) = self.retain {
            check_retain(retain, self.lease)?;
        }
        if self.max_waiters == 0 {
            return Err(Invalid::new("max_waiters 0: must be at least 1"));
        }
        Ok(())
    }

    /// The longest lease that is renewed.
    fn longest_renewed(&self) -> Duration {
        self.longest_lease.unwrap_or(MAX_LEASE)
    }

    pub(crate) fn claim_window(&self) -> Duration {
        self.claim_window.unwrap_or(DEFAULT_CLAIM_WINDOW.min(self.lease))
    }

    /// How long one call waits for its reply.
    pub(crate) fn attempt_timeout(&self) -> Duration {
        NOT_AFTER.min(self.server_timeout)
    }

    /// The longest time between two polls of a waitlist. A dead client loses a pushed grant within a claim
    /// window, and somebody must notice it.
    pub(crate) fn poll_interval(&self) -> Duration {
        (self.claim_window() * 9 / 10).min(LONGEST_POLL_INTERVAL)
    }
}

/// The settings of a lock. They override those of its manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockOptions {
    pub(crate) lease: Option<Duration>,
    /// The lease is not renewed.
    pub(crate) fixed: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
    pub(crate) local_handoffs: Option<u32>,
    pub(crate) retain: Option<Duration>,
    /// The group of the metrics.
    pub(crate) group: Option<Arc<str>>,
    /// Its waits are campaigns, which may last for as long as another process leads.
    pub(crate) is_led: bool,
}

impl LockOptions {
    /// How many turns a hold may serve inside the process, as far as the lease allows several.
    pub(crate) fn turns(&self, manager: &ManagerOptions) -> Result<u16, Invalid> {
        turns(self.local_handoffs.unwrap_or(manager.local_handoffs))
    }

    /// For how many ms after its grant the lock may stay with its client, if it can be retained.
    #[inline]
    pub(crate) fn retain_ms(
        &self,
        manager: &ManagerOptions,
        can_be_retained: bool,
    ) -> Result<Option<NonZeroU32>, Invalid> {
        match self.retain.or(manager.retain) {
            None => Ok(None),
            Some(retain) => self.checked_retain_ms(retain, manager, can_be_retained),
        }
    }

    fn checked_retain_ms(
        &self,
        retain: Duration,
        manager: &ManagerOptions,
        can_be_retained: bool,
    ) -> Result<Option<NonZeroU32>, Invalid> {
        if self.retain.is_some() && !can_be_retained {
            return Err(Invalid::new(
                "retain: must be set for a lock without an owner, a max_hold or an at_least alone, with a lease \
                 that is renewed, and not in a quorum",
            ));
        }
        let lease = self.lease.unwrap_or(manager.lease);
        // The manager's is for leases like its own.
        let retain = match self.retain {
            Some(retain) => check_retain(retain, lease).map(|()| retain)?,
            None => retain.min(lease / 3),
        };
        let ms = u32::try_from(millis(retain)).ok().and_then(NonZeroU32::new);
        Ok(ms.filter(|_| can_be_retained && !self.is_led))
    }

    pub(crate) fn terms(&self, manager: &ManagerOptions) -> Result<LeaseTerms, Invalid> {
        let length = self.lease.unwrap_or(manager.lease);
        let longest = match self.fixed {
            true => manager.longest_lease.unwrap_or(MAX_KEPT),
            false => manager.longest_renewed(),
        };
        check_span("lease", length, MIN_LEASE, longest)?;
        if let Some(max_hold) = self.max_hold {
            check_span("max_hold", max_hold, MIN_LEASE, Duration::MAX)?;
        }
        let terms = LeaseTerms {
            length,
            fixed: self.fixed,
            max_hold: self.max_hold,
            at_least: self.at_least,
            longest_claim_window: manager.claim_window(),
        };
        if let Some(at_least) = self.at_least {
            check_at_least(at_least, &terms)?;
        }
        Ok(terms)
    }
}

/// Refuses a time for which a hold with these terms must not keep its lock.
pub(crate) fn check_at_least(at_least: Duration, terms: &LeaseTerms) -> Result<(), Invalid> {
    check_span("at_least", at_least, MIN_AT_LEAST, MAX_KEPT)?;
    let longest = terms.longest();
    if at_least > longest {
        let limit = if terms.ends_by_max_hold() {
            "max_hold"
        } else {
            "lease"
        };
        return Err(Invalid::new(format!(
            "at_least {at_least:?}: must not be longer than {limit}, {longest:?}"
        )));
    }
    Ok(())
}

/// A lock that is retained is not renewed meanwhile.
fn check_retain(retain: Duration, lease: Duration) -> Result<(), Invalid> {
    check_span("retain", retain, MIN_RETAIN, lease / 3)
}

/// The default group of a lock: its name up to the first colon. Of a name that begins with a hash tag, the
/// braces do not count.
pub(crate) fn group_of(lock: &str) -> &str {
    let name = lock.strip_prefix('{').unwrap_or(lock);
    let end = name.find([':', '}']).unwrap_or(name.len());
    // A name that begins with a colon would have an empty group.
    if end == 0 { lock } else { &name[..end] }
}

pub(crate) fn check_group(group: &str) -> Result<(), Invalid> {
    if group.is_empty() || group.len() > MAX_GROUP_BYTES || group.contains(char::is_control) {
        return Err(Invalid::new(format!(
            "group {group:?}: must be 1 to {MAX_GROUP_BYTES} bytes without control characters"
        )));
    }
    Ok(())
}

/// The number of turns of a hold, if it is in its range.
fn turns(local_handoffs: u32) -> Result<u16, Invalid> {
    let turns = u16::try_from(local_handoffs).ok();
    let max = RESERVED + 1;
    let turns = turns.filter(|turns| (1..=max).contains(&u64::from(*turns)));
    turns.ok_or_else(|| {
        Invalid::new(format!(
            "local_handoffs {local_handoffs}: must be from 1 to {max}"
        ))
    })
}

pub(crate) fn check_span(what: &str, span: Duration, min: Duration, max: Duration) -> Result<(), Invalid> {
    if (min..=max).contains(&span) {
        return Ok(());
    }
    let limit = if max == Duration::MAX {
        format!("at least {min:?}")
    } else {
        format!("from {min:?} to {max:?}")
    };
    Err(Invalid::new(format!("{what} {span:?}: must be {limit}")))
}
