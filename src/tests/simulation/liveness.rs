//! Checks that no time is lost. While nothing disturbs the waiters, no lock stays free, and no lock stays
//! held by a request that does not know of its hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::history::{Belief, Effect, Event, Fault, Op, Way};
use super::plan::Plan;
use super::timing::{ROUNDING, Timing};
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::rules::permits::PermitsHold;
use crate::protocol::{Acquired, Mode, Renewed};
use crate::types::permits::Permits;

/// Describes all delays that the design does not explain: for each lock, the first of each kind.
///
/// A client is *at rest* when the recovery from every fault of the client or the server is over
/// ([`Timing::recovery`]), and none of its holds expired unclaimed in the last [`Timing::poll`]. The script
/// that finds such a hold notes the client absent, and the client is not told.
///
/// **Free**: while a call of a client at rest waits, a lock is free for no longer than [`Timing::prompt`].
/// Permits are free for a call if there are enough for it, and for the first request in the queue too,
/// unless the client of that one died long ago. A release hands the lock to the next reachable request. New
/// requests, and requests that missed their turn, learn without a timer that the lock is free. When a lease
/// expires, however, no message is sent. Then the time counts from the next poll of the waitlist, which
/// comes at the time to live that the waitlist was last told, or one polling interval later.
///
/// **Unused**: a client at rest holds a lock on the server for no longer than [`Timing::prompt`] while none
/// of its tasks has a guard of that request. The client learns of its grants, and withdraws the requests that
/// no caller waits for. While no other request is queued, a lock that is retained may be unused for
/// [`Timing::retain`] after its first guard. Another exception is a call that was delayed until the server's
/// clock was set back: it can run past its `not_after`, which the server then finds to be in the future.
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
    /// When each client died, that did.
    died: BTreeMap<usize, Duration>,
    waiting: BTreeMap<Op, Waiting>,
    /// The request of each guard that exists.
    guards: BTreeMap<Op, RequestId>,
    /// The requests that tasks have guards of. Those of leaked guards stay here.
    used: BTreeSet<RequestId>,
    /// When each request had its first guard.
    used_from: BTreeMap<RequestId, Duration>,
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
    permits: Permits,
    /// When it came. If other holds were in its way since, when the last of them was released.
    since: Duration,
}

#[derive(Default)]
struct Lock<'a> {
    key: String,
    /// The start and the deadline of each hold.
    holds: BTreeMap<&'a RequestId, (Duration, Duration)>,
    /// The deadlines of the holds and how many permits they have. The last one is the first here.
    ends: Vec<(Duration, u32)>,
    /// The first request in the queue.
    head: Option<&'a RequestId>,
    /// Since when there is one.
    wanted_since: Option<Duration>,
    /// When the waitlist of each client polls next.
    poll_due: BTreeMap<usize, Duration>,
    free_reported: bool,
    unused_reported: bool,
}

impl Lock<'_> {
    /// Returns when the last lease expired that was in the way of such a request, or 0 if none was. Returns
    /// `None` if there are too few permits for it at this time.
    fn fits_since(&self, permits: Permits, now: Duration) -> Option<Duration> {
        let mut used = permits.weight;
        let last = self.ends.iter().find(|(_, weight)| {
            used += weight;
            used > permits.capacity
        });
        match last {
            None => Some(Duration::ZERO),
            Some((until, _)) => (*until < now).then_some(*until),
        }
    }

    /// The permits of the first request in the queue.
    fn at_head(&self) -> Option<Permits> {
        let (weight, capacity) = (self.head?.weight(), self.head?.capacity());
        Some(Permits { weight, capacity })
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
            died: BTreeMap::new(),
            waiting: BTreeMap::new(),
            guards: BTreeMap::new(),
            used: BTreeSet::new(),
            used_from: BTreeMap::new(),
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
        if lock.free_reported {
            return;
        }
        let head = lock.at_head();
        let head_since = head.map_or(Some(Duration::ZERO), |head| lock.fits_since(head, now));
        for (op, waiting) in self.waiting.iter().filter(|(_, waiting)| waiting.lock == number) {
            let client = waiting.client;
            let Some(expired) = lock.fits_since(waiting.permits, now) else {
                continue;
            };
            // The first request waits for its permits, and its client may be alive, as far as the server
            // knows.
            let Some(head_since) = head_since.or_else(|| self.head_is_known_dead(lock, now)) else {
                continue;
            };
            let expired = expired.max(head_since);
            let mut since = expired.max(waiting.since).max(self.rest_from[client]);
            if let Some(ended) = lock.unclaimed_expired(client, &self.unclaimed, now) {
                since = since.max(ended + self.timing.poll());
            }
            if let (true, Some(poll_due)) = (expired > Duration::ZERO, lock.poll_due.get(&client)) {
                since = since.max(*poll_due);
            }
            if !self.died.contains_key(&client) && since + self.timing.prompt() < now {
                self.found.push(format!(
                    "{now:?}: {} is free, and call {op} could have had it since {since:?}",
                    lock.key
                ));
                self.locks[number].free_reported = true;
                return;
            }
        }
    }

    /// Returns by when the other clients' waitlists have found that the client of the first request in the
    /// queue is dead.
    fn head_is_known_dead(&self, lock: &Lock<'_>, now: Duration) -> Option<Duration> {
        let died = *self.died.get(&client_of(lock.head?)?)?;
        // A call in flight can run late.
        let calls_until = died + self.timing.recovery(Fault::CommandsCut);
        Some(calls_until + self.timing.poll()).filter(|known| *known < now)
    }

    fn check_unused(&mut self, number: usize, now: Duration) {
        let lock = &mut self.locks[number];
        for (request, (from, until)) in lock.holds.iter().filter(|_| !lock.unused_reported) {
            let Some(client) = client_of(request).filter(|client| !self.died.contains_key(client)) else {
                continue;
            };
            let accounted_for =
                self.used.contains(*request) || self.may_return.contains(request) || request.is_kept();
            if !request.is_owner() || accounted_for {
                continue;
            }
            let ended = self.used_until.get(*request).copied().unwrap_or_default();
            let since = ended.max(*from).max(self.rest_from[client]);
            let since = match (request.is_retaining(), lock.wanted_since) {
                // The client may have missed the message of this hold.
                (true, Some(wanted)) if *from >= self.rest_from[client] => since.max(wanted),
                // Its time counts from its first guard.
                (true, _) => since.max(*self.used_from.get(*request).unwrap_or(from) + self.timing.retain),
                (false, _) => since,
            };
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
                permits,
                way,
                ..
            } if *way != Way::Try => {
                let waiting = Waiting {
                    client: *client,
                    lock: *lock,
                    permits: *permits,
                    since: at,
                };
                self.waiting.insert(*op, waiting);
            }
            Event::Acquired(Belief { op, owner, .. }) => {
                self.waiting.remove(op);
                if let Some(request) = RequestId::from_wire(owner.as_str()) {
                    self.used.insert(request.clone());
                    self.used_from.entry(request.clone()).or_insert(at);
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
                self.died.insert(*client, at);
            }
            Event::Fault { client, until, fault } => {
                self.note_disturbance(*client, *until);
                if *fault == Fault::ClockSetBack {
                    self.may_return.append(&mut self.withdrawn);
                }
            }
            Event::Holds { key, holds, head } => self.note_holds(at, key, holds, head.as_ref()),
            Event::Executed { client, effect } => self.note_executed(at, *client, effect),
            Event::Pushed { grant, .. } => {
                self.unclaimed.insert(grant.request.clone());
            }
            _ => {}
        }
    }

    fn note_holds(
        &mut self,
        at: Duration,
        key: &str,
        holds: &'a BTreeMap<RequestId, (Duration, PermitsHold)>,
        head: Option<&'a RequestId>,
    ) {
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
        // Whether a request had to wait, though leases may have expired since.
        let waited = |permits| lock.fits_since(permits, Duration::ZERO).is_none();
        let head_waited = lock.at_head().is_some_and(waited);
        for waiting in self.waiting.values_mut().filter(|waiting| waiting.lock == number) {
            if head_waited || waited(waiting.permits) {
                waiting.since = at;
            }
        }
        lock.head = head;
        lock.wanted_since = head.and(lock.wanted_since.or(Some(at)));
        lock.free_reported &= holds.is_empty();
        lock.ends = holds
            .values()
            .map(|(until, hold)| (*until, hold.weight))
            .collect();
        lock.ends.sort_unstable_by(|a, b| b.cmp(a));
        let from = |request| before.get(request).map_or(at, |(from, _)| *from);
        lock.holds = holds
            .iter()
            .map(|(request, (until, _))| (request, (from(request), *until)))
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
