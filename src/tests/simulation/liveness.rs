//! Checks that no time is lost. While nothing disturbs the waiters, no lock stays free, and no lock stays
//! held by a request that does not know of its hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::history::{Belief, Effect, Event, Fault, Op, Way};
use super::plan::Plan;
use super::timing::{ROUNDING, Timing};
use crate::store::ids::{ClientId, RequestId};
use crate::store::{Acquired, Mode, Renewed};

/// Describes all delays that the design does not explain: for each lock, the first of each kind.
///
/// A client is *at rest* when the recovery from every fault of the client or the server is over
/// ([`Timing::recovery`]), and none of its holds expired unclaimed in the last [`Timing::poll`]. The script
/// that finds such a hold deletes the client's presence record, and the client is not told.
///
/// **Free**: while a call of a client at rest waits, a lock is free for no longer than [`Timing::prompt`]. A
/// release hands the lock to the next reachable request. New requests, and requests that missed their turn,
/// learn without a timer that the lock is free. When a lease expires, however, no message is sent. Then the
/// time counts from the next poll of the waitlist, which comes at the time to live that the waitlist was last
/// told, or one polling interval later.
///
/// **Unused**: a client at rest holds a lock on the server for no longer than [`Timing::prompt`] while none
/// of its tasks has a guard of that request. The client learns of its grants, and withdraws the requests that
/// no caller waits for. The exception is a call that was delayed until the server's clock was set back: it
/// can run past its `not_after`, which the server then finds to be in the future.
pub(super) fn delays(
    events: &[(Duration, Event)],
    plan: &Plan,
    key_of: &impl Fn(usize) -> String,
) -> Vec<String> {
    let mut watch = Watch::new(plan, key_of);
    for (at, event) in events {
        watch.check(*at);
        watch.note(*at, event);
    }
    watch.found
}

struct Watch<'a> {
    timing: Timing,
    locks: Vec<Lock<'a>>,
    /// When each client will be at rest.
    rest_from: Vec<Duration>,
    died: BTreeSet<usize>,
    waiting: BTreeMap<Op, Waiting>,
    /// The request of each guard that exists.
    guards: BTreeMap<Op, RequestId>,
    /// The requests that tasks have guards of. Those of leaked guards stay here.
    used: BTreeSet<RequestId>,
    used_until: BTreeMap<RequestId, Duration>,
    withdrawn: BTreeSet<&'a RequestId>,
    /// Requests that were granted by a push and have not been claimed.
    unclaimed: BTreeSet<RequestId>,
    /// Requests that were withdrawn, and that a late call may queue again since the server's clock was set
    /// back.
    may_return: BTreeSet<&'a RequestId>,
    found: Vec<String>,
}

struct Waiting {
    client: usize,
    lock: usize,
    since: Duration,
}

#[derive(Default)]
struct Lock<'a> {
    key: String,
    /// The start and the deadline of each hold.
    holds: BTreeMap<&'a RequestId, (Duration, Duration)>,
    released_at: Duration,
    /// When the waitlist of each client polls next.
    poll_due: BTreeMap<usize, Duration>,
    free_reported: bool,
    unused_reported: bool,
}

impl Lock<'_> {
    /// Returns since when the lock is free, and whether that is because a lease expired.
    fn free_since(&self, now: Duration) -> Option<(Duration, bool)> {
        match self.holds.values().map(|(_, until)| *until).max() {
            None => Some((self.released_at, false)),
            Some(until) => (until < now).then_some((until, true)),
        }
    }

    /// When the last unclaimed hold of this client expired.
    fn unclaimed_expired(
        &self,
        client: usize,
        unclaimed: &BTreeSet<RequestId>,
        now: Duration,
    ) -> Option<Duration> {
        let expiry = |(request, (_, until)): (&&RequestId, &(Duration, Duration))| {
            let is_unclaimed = client_of(request) == Some(client) && unclaimed.contains(*request);
            (*until < now && is_unclaimed).then_some(*until)
        };
        self.holds.iter().filter_map(expiry).max()
    }
}

/// Returns the number of a request's client.
fn client_of(request: &RequestId) -> Option<usize> {
    (0..8).find(|client| *request.client() == *ClientId::from_number(*client as u128).to_string())
}

impl<'a> Watch<'a> {
    fn new(plan: &Plan, key_of: &impl Fn(usize) -> String) -> Watch<'a> {
        let lock = |lock| Lock {
            key: key_of(lock),
            ..Lock::default()
        };
        Watch {
            timing: plan.timing(),
            locks: (0..plan.locks).map(lock).collect(),
            // The last client connects after the calm.
            rest_from: vec![Duration::ZERO; plan.clients + 1],
            died: BTreeSet::new(),
            waiting: BTreeMap::new(),
            guards: BTreeMap::new(),
            used: BTreeSet::new(),
            used_until: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            unclaimed: BTreeSet::new(),
            may_return: BTreeSet::new(),
            found: Vec::new(),
        }
    }

    /// Checks that nothing was overdue before this event.
    fn check(&mut self, now: Duration) {
        for number in 0..self.locks.len() {
            self.check_free(number, now);
            self.check_unused(number, now);
        }
    }

    fn check_free(&mut self, number: usize, now: Duration) {
        let lock = &self.locks[number];
        let Some((free_since, expired)) = lock.free_since(now).filter(|_| !lock.free_reported) else {
            return;
        };
        for (op, waiting) in self.waiting.iter().filter(|(_, waiting)| waiting.lock == number) {
            let client = waiting.client;
            let mut since = free_since.max(waiting.since).max(self.rest_from[client]);
            if let Some(ended) = lock.unclaimed_expired(client, &self.unclaimed, now) {
                since = since.max(ended + self.timing.poll());
            }
            if let (true, Some(poll_due)) = (expired, lock.poll_due.get(&client)) {
                since = since.max(*poll_due);
            }
            if !self.died.contains(&client) && since + self.timing.prompt() < now {
                self.found.push(format!(
                    "{now:?}: {} has been free since {free_since:?}, \
                     and call {op} could have had it since {since:?}",
                    lock.key
                ));
                self.locks[number].free_reported = true;
                return;
            }
        }
    }

    fn check_unused(&mut self, number: usize, now: Duration) {
        let lock = &mut self.locks[number];
        for (request, (from, until)) in lock.holds.iter().filter(|_| !lock.unused_reported) {
            let Some(client) = client_of(request).filter(|client| !self.died.contains(client)) else {
                continue;
            };
            let accounted_for =
                self.used.contains(*request) || self.may_return.contains(request) || request.is_kept();
            if !request.is_owner() || accounted_for {
                continue;
            }
            let ended = self.used_until.get(*request).copied().unwrap_or_default();
            let since = ended.max(*from).max(self.rest_from[client]);
            if since + self.timing.prompt() < now.min(*until) {
                self.found.push(format!(
                    "{now:?}: {} has been held by {request} since {from:?}, and unused since {since:?}",
                    lock.key
                ));
                lock.unused_reported = true;
                return;
            }
        }
    }

    fn note_disturbance(&mut self, client: Option<usize>, from: Duration) {
        for (number, rest_from) in self.rest_from.iter_mut().enumerate() {
            if client.is_none_or(|client| client == number) {
                *rest_from = from.max(*rest_from);
            }
        }
    }

    fn note(&mut self, at: Duration, event: &'a Event) {
        match event {
            Event::Called {
                op,
                client,
                lock,
                way,
                ..
            } if *way != Way::Try => {
                let waiting = Waiting {
                    client: *client,
                    lock: *lock,
                    since: at,
                };
                self.waiting.insert(*op, waiting);
            }
            Event::Acquired(Belief { op, owner, .. }) => {
                self.waiting.remove(op);
                if let Some(request) = RequestId::from_wire(owner.as_str()) {
                    self.used.insert(request.clone());
                    self.guards.insert(*op, request);
                }
            }
            Event::Cancelled { op } | Event::Failed { op, .. } => {
                self.waiting.remove(op);
            }
            Event::Ended { op, .. } => {
                if let Some(request) = self.guards.remove(op) {
                    // The next turn may have begun.
                    if !self.guards.values().any(|other| *other == request) {
                        self.used.remove(&request);
                    }
                    self.used_until.insert(request, at);
                }
            }
            Event::Died { client } => {
                self.died.insert(*client);
            }
            Event::Fault { client, until, fault } => {
                self.note_disturbance(*client, *until);
                if *fault == Fault::ClockSetBack {
                    self.may_return.append(&mut self.withdrawn);
                }
            }
            Event::Holds { key, holds } => self.note_holds(at, key, holds),
            Event::Executed { client, effect } => self.note_executed(at, *client, effect),
            Event::Pushed { grant, .. } => {
                self.unclaimed.insert(grant.request.clone());
            }
            _ => {}
        }
    }

    fn note_holds(&mut self, at: Duration, key: &str, holds: &'a BTreeMap<RequestId, Duration>) {
        let Some(number) = self.locks.iter().position(|lock| lock.key == key) else {
            return;
        };
        let before = std::mem::take(&mut self.locks[number].holds);
        for (request, (_, until)) in &before {
            if *until <= at + ROUNDING && self.unclaimed.contains(*request) {
                self.note_disturbance(client_of(request), at + self.timing.poll());
            }
        }
        let lock = &mut self.locks[number];
        lock.released_at = at;
        lock.free_reported &= holds.is_empty();
        let from = |request| before.get(request).map_or(at, |(from, _)| *from);
        lock.holds = holds
            .iter()
            .map(|(request, until)| (request, (from(request), *until)))
            .collect();
    }

    fn note_executed(&mut self, at: Duration, client: usize, effect: &'a Effect) {
        match effect {
            Effect::Acquire(call, reply) if call.mode != Mode::Try => {
                let at_the_latest = at + self.timing.interval;
                // Any other reply may answer the waitlist's poll, and does not tell it any time.
                let poll_due = match reply {
                    Acquired::Contended(contended) => at_the_latest.min(at + contended.ttl),
                    _ => at_the_latest,
                };
                if let Some(lock) = self.locks.iter_mut().find(|lock| lock.key == call.keys.lock) {
                    lock.poll_due.insert(client, poll_due);
                }
            }
            Effect::Renew(call, Renewed::Until(_)) => {
                self.unclaimed.remove(&call.request);
            }
            Effect::Withdraw(call) => {
                for request in &call.requests {
                    self.withdrawn.insert(request);
                }
            }
            _ => {}
        }
    }
}
