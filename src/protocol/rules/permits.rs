//! The rules of permits, those of a semaphore or a read/write lock: what their scripts do, in Rust.
//!
//! A request takes `weight` permits, and may hold while, with them, at most `capacity` are in use. Both
//! numbers stand in the request, so no capacity is stored about which two callers could disagree. A reader
//! takes one of [`MOST_PERMITS`](crate::types::permits::MOST_PERMITS), and a writer all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Absent, Channels, Now, Queue, RETENTION_MS, Rules, Run};
use crate::protocol::ids::RequestId;
use crate::protocol::interface::Grant;
use crate::protocol::keys::Keys;
use crate::protocol::operations::inspect::InspectedHold;
use crate::protocol::operations::release::Released;
use crate::protocol::operations::{
    Acquire, Acquired, Contended, Inspect, Inspected, Mode, Release, ReleaseOutcome, ReleaseWhat, Renew,
    Renewed, Shrink, Withdraw, Withdrawn,
};
use crate::protocol::push::Push;
use crate::time::server_time::{ServerTime, Ticket, millis};
use crate::types::fence::Fence;
use crate::types::permits::MOST_SLOTS;

/// What a renewal writes as [`Permits::seen`] if the clock was set back. It is later than any time.
pub(crate) const STALE: u64 = 9_999_999_999_999;
/// A call steps over so many full requests at most.
const STEPS: usize = 64;
/// How many holds an inspection lists.
const LISTED: usize = 100;

/// All permits under one name: their holds and the queue.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    /// The time in ms at which the holds were last written. 0 before the first hold.
    pub(crate) seen: u64,
    /// How many permits are in use: the sum of the weights of all holds.
    pub(crate) used: u32,
    /// The last fence.
    pub(crate) fence: u64,
    /// The latest time in ms until which permits that were given back stay taken. 0 if none ever did.
    pub(crate) taken_until: u64,
    pub(crate) holds: BTreeMap<RequestId, PermitsHold>,
    /// Request → a time in ms before which its hold is not over. A renewal leaves the timer as it is, so a
    /// timer may be early. The first call that finds it due corrects it.
    pub(crate) timers: Queue,
    pub(crate) queue: Queue,
    /// The request that was overtaken last, and how many permits were granted over it while it was the first
    /// in the queue.
    pub(crate) overtaken: Option<(RequestId, u32)>,
    pub(crate) absent: Absent,
    /// The time in ms after which nothing of these permits is needed.
    pub(crate) kept_until: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PermitsHold {
    pub(crate) deadline: u64,
    pub(crate) lease: u64,
    /// The grant was pushed, and is not claimed yet.
    pub(crate) pushed: bool,
    pub(crate) fence: u64,
    /// How many permits it has. After a shrink that is fewer than its request names.
    pub(crate) weight: u32,
    pub(crate) slot: Option<u32>,
}

impl Permits {
    pub(crate) fn grant_of(&self, request: &RequestId) -> Option<Grant> {
        let hold = self.holds.get(request)?;
        Some(Grant {
            request: request.clone(),
            fence: Fence::new(hold.fence)?,
            deadline: ServerTime::from_ms(hold.deadline),
            pushed: hold.pushed,
            slot: hold.slot,
        })
    }

    pub(crate) fn set_timer(&mut self, time: u64, request: &RequestId) {
        self.timers.remove(request);
        self.timers.add(time, request);
    }

    /// How many permits were granted over a request while it was the first in the queue.
    fn overtaken_by(&self, request: &RequestId) -> u32 {
        let overtaken = self.overtaken.as_ref().filter(|(last, _)| last == request);
        overtaken.map_or(0, |(_, permits)| *permits)
    }

    pub(crate) fn keep_until(&mut self, until: u64) {
        self.kept_until = self.kept_until.max(until);
    }
}

/// The permits during one call.
#[derive(Debug)]
pub(crate) struct OpenPermits<'a> {
    pub(crate) permits: &'a mut Permits,
    keys: &'a Keys,
    pub(crate) now: Now,
    /// The largest number of timers that one call looks at, and of requests that it removes from the queue.
    pub(crate) bound: usize,
    /// The caller's client is awake, and not absent if it did not claim a grant.
    caller: &'a str,
    /// How many permits were in use before the call.
    used_before: u32,
    /// Some holds that have ended may still be there, because the bound was reached.
    unsettled: bool,
}

impl<'a> OpenPermits<'a> {
    /// Drops the holds that have ended.
    pub(crate) fn new(
        permits: &'a mut Permits,
        keys: &'a Keys,
        now: Now,
        bound: usize,
        caller: &'a str,
    ) -> OpenPermits<'a> {
        let mut open = OpenPermits {
            used_before: permits.used,
            permits,
            keys,
            now,
            bound,
            caller,
            unsettled: false,
        };
        if open.permits.used > 0 {
            if now.ms < open.permits.seen || open.permits.timers.len() == 0 {
                open.rebuild();
            }
            open.settle(false);
        }
        open
    }

    /// Makes the timers again. A deadline beyond now + its lease means that the clock was set back; it is
    /// clamped. A script does this in parts, in no particular order, and its call is incomplete until all are
    /// done.
    fn rebuild(&mut self) {
        let permits = &mut *self.permits;
        for (request, hold) in &mut permits.holds {
            hold.deadline = hold.deadline.min(self.now.ms + hold.lease);
            permits.timers.remove(request);
            permits.timers.add(hold.deadline, request);
        }
        permits.seen = self.now.ms;
        permits.overtaken = None;
        permits.absent.clear();
    }

    /// Drops the holds that have ended, in the order of their ends. If `is_exact`, also corrects the first
    /// timer that is left. Looks at no more timers than the bound. Returns the first timer, or 0. The client
    /// of an unclaimed grant is absent.
    pub(crate) fn settle(&mut self, is_exact: bool) -> u64 {
        let mut earliest = 0;
        for _ in 0..self.bound {
            let Some((due, request)) = self.permits.timers.order.first().cloned() else {
                return 0;
            };
            earliest = due;
            let is_over = due <= self.now.ms;
            if !is_over && !is_exact {
                return due;
            }
            let hold = self.permits.holds.get(&request).copied();
            match hold {
                None => self.permits.timers.remove(&request),
                Some(hold) if hold.deadline != due => self.permits.set_timer(hold.deadline, &request),
                Some(_) if !is_over => return due,
                Some(hold) => {
                    self.drop_hold(&request);
                    if hold.pushed && request.client() != self.caller {
                        self.permits.absent.note(request.client());
                    }
                }
            }
        }
        self.unsettled = true;
        earliest
    }

    /// Ends a hold. Returns what it was, if it was there.
    pub(crate) fn drop_hold(&mut self, request: &RequestId) -> Option<PermitsHold> {
        let hold = self.permits.holds.remove(request)?;
        self.permits.timers.remove(request);
        self.permits.used -= hold.weight;
        self.permits.seen = self.now.ms;
        Some(hold)
    }

    /// Adds a hold, which takes its permits.
    pub(crate) fn add(&mut self, request: &RequestId, hold: PermitsHold) {
        let permits = &mut *self.permits;
        permits.set_timer(hold.deadline, request);
        permits.used += hold.weight;
        permits.seen = self.now.ms;
        permits.keep_until(hold.deadline + RETENTION_MS);
        permits.holds.insert(request.clone(), hold);
    }

    /// Leaves a hold with `weight` permits, if it has more.
    pub(crate) fn shrink(&mut self, request: &RequestId, weight: u32) {
        let permits = &mut *self.permits;
        if let Some(hold) = permits.holds.get_mut(request).filter(|hold| weight < hold.weight) {
            permits.used -= hold.weight - weight;
            hold.weight = weight;
            permits.seen = self.now.ms;
        }
    }

    /// Gives a request its permits, under a fence that is larger than all before it.
    pub(crate) fn grant(&mut self, request: &RequestId, lease: u64, pushed: bool) -> Option<Grant> {
        let fence = self.now.us.max(self.permits.fence + 1);
        self.permits.fence = fence;
        let hold = PermitsHold {
            deadline: self.now.ms + lease,
            lease,
            pushed,
            fence,
            weight: request.weight(),
            slot: self.slot_for(request),
        };
        self.add(request, hold);
        self.permits.grant_of(request)
    }

    /// One permit of a small capacity comes with a slot, the smallest that no hold has. Less than its
    /// capacity was in use before, so the slot is less than that, whatever other callers say.
    fn slot_for(&self, request: &RequestId) -> Option<u32> {
        if request.weight() > 1 || request.capacity() > MOST_SLOTS {
            return None;
        }
        let holds = self.permits.holds.values();
        let taken: BTreeSet<_> = holds.filter_map(|hold| hold.slot).collect();
        (0..MOST_SLOTS).find(|slot| !taken.contains(slot))
    }

    /// Whether there are enough permits for a request.
    pub(crate) fn fits(&self, request: &RequestId) -> bool {
        request.weight() <= self.free_for(request)
    }

    fn free_for(&self, request: &RequestId) -> u32 {
        request.capacity().saturating_sub(self.permits.used)
    }
}

/// What a hand-over has done so far.
#[derive(Debug)]
struct Progress {
    /// Another request may be the first in the queue now, or more permits stay taken.
    is_new: bool,
    removed: usize,
    /// The clients whose messages were refused.
    refused: BTreeSet<String>,
}

impl OpenPermits<'_> {
    fn is_reachable(&self, client: &str, channels: &dyn Channels) -> bool {
        !self.permits.absent.has(client)
            && channels.subscribers(&format!("{}{client}", self.keys.channel)) > 0
    }

    /// Gives out as many permits as there are, from the head of the queue on, and stops at the first request
    /// for which there are too few. `mine` is the caller's own request and its lease. If that is queued, it
    /// is granted without a message. Returns whether a bound was reached: then the call must be repeated.
    ///
    /// A refused message leaves permits over, so the next requests get them, with messages of their own.
    ///
    /// A request is full if as many permits are in use as its capacity. One with a larger capacity overtakes
    /// full ones, but only while what was granted over the first of them fits into its capacity. So nobody is
    /// overtaken for good.
    ///
    /// Permits that stay taken come back by time, and nobody releases them. So the client of a request is
    /// told to ask for that time when its request becomes the first. `is_new` says that this may be so, or
    /// that more permits stay taken.
    pub(crate) fn hand_over(
        &mut self,
        is_new: bool,
        mine: Option<(&RequestId, u64)>,
        channels: &mut dyn Channels,
    ) -> bool {
        let mut progress = Progress {
            is_new,
            removed: 0,
            refused: BTreeSet::new(),
        };
        loop {
            let (told, is_done) = self.take_from_queue(mine, &mut progress, channels);
            match (self.tell(told, &mut progress, channels), is_done) {
                (_, false) => return true,
                (true, true) => {}
                (false, true) => break,
            }
        }
        let first = self.permits.queue.order.first().map(|(_, first)| first);
        let is_told = self.is_told_of_time(&progress);
        if let Some(first) = first.filter(|first| is_told && mine.is_none_or(|(mine, _)| mine != *first)) {
            channels.publish(
                &format!("{}{}", self.keys.channel, first.client()),
                &Push::Kept.write(),
            );
        }
        self.unsettled
    }

    /// Whether the first request must hear that permits stay taken.
    fn is_told_of_time(&self, progress: &Progress) -> bool {
        self.permits.taken_until > self.now.ms && (progress.is_new || progress.removed > 0)
    }

    /// Returns the grants of each client that must be told, in the order of its first one. Also returns
    /// whether the end was reached, and not the bound.
    fn take_from_queue(
        &mut self,
        mine: Option<(&RequestId, u64)>,
        progress: &mut Progress,
        channels: &dyn Channels,
    ) -> (Vec<Vec<Grant>>, bool) {
        // The largest capacity that is known, or less.
        let largest = mine.map_or(0, |(mine, _)| mine.capacity()).max(self.used_before);
        let mut told: Vec<Vec<Grant>> = Vec::new();
        // How many full requests were stepped over, and the first of them.
        let (mut stepped, mut first) = (0, None);
        loop {
            let Some((_, head)) = self.permits.queue.order.iter().nth(stepped).cloned() else {
                return (told, true);
            };
            let own_lease = mine.filter(|(mine, _)| **mine == head).map(|(_, lease)| lease);
            let is_full = self.free_for(&head) == 0;
            let steps = is_full && largest > head.capacity();
            // Of several full requests, only the first must be reachable.
            let is_asked = !is_full || first.is_none() && (steps || self.is_told_of_time(progress));
            let is_reachable =
                || !progress.refused.contains(head.client()) && self.is_reachable(head.client(), channels);
            let is_waiting = own_lease.is_some() || !is_asked || is_reachable();
            if steps && is_waiting && stepped < STEPS {
                stepped += 1;
                first = first.or(Some(head));
                continue;
            }
            let granted_over = first.as_ref().map_or(0, |first| self.permits.overtaken_by(first));
            let is_blocked = !self.fits(&head) || granted_over + head.weight() > head.capacity();
            // What is blocked waits, unless it cannot be reached. Then it would only keep the others out.
            if is_blocked && is_waiting {
                return (told, true);
            }
            if progress.removed == self.bound {
                return (told, false);
            }
            self.permits.queue.remove(&head);
            progress.removed += 1;
            if let Some(first) = first.as_ref().filter(|_| is_waiting) {
                self.permits.overtaken = Some((first.clone(), granted_over + head.weight()));
            }
            if let Some(lease) = own_lease {
                self.grant(&head, lease, false);
                continue;
            }
            if !is_waiting {
                continue;
            }
            if let Some(grant) = self.grant(&head, millis(head.claim_window()), true) {
                let of_client = |grants: &&mut Vec<Grant>| grants[0].request.client() == head.client();
                match told.iter_mut().find(of_client) {
                    Some(grants) => grants.push(grant),
                    None => told.push(vec![grant]),
                }
            }
        }
    }

    /// Tells each client its grants, in one message. The grants of a refused message are void: their requests
    /// stay removed, as if the client could not be reached, and no fence is given out again. Returns whether
    /// a message was refused.
    fn tell(&mut self, told: Vec<Vec<Grant>>, progress: &mut Progress, channels: &mut dyn Channels) -> bool {
        let mut is_refused = false;
        for grants in told {
            let client = grants[0].request.client().to_owned();
            let channel = format!("{}{client}", self.keys.channel);
            let requests: Vec<_> = grants.iter().map(|grant| grant.request.clone()).collect();
            if !channels.publish(&channel, &Push::Granted(grants).write()) {
                is_refused = true;
                progress.refused.insert(client);
                for request in requests {
                    self.drop_hold(&request);
                }
            }
        }
        is_refused
    }
}

pub(super) fn acquire(call: &Acquire, rules: &mut Rules, run: Run<'_>) -> Acquired {
    let Run {
        now,
        not_after,
        channels,
    } = run;
    let Acquire {
        keys, request, mode, ..
    } = call;
    let lease = millis(call.lease);
    let mut open = rules.open_permits(keys, now, request);
    if let Some(grant) = open.permits.grant_of(request) {
        // Other holds may be over.
        let was_queued = false;
        return match open.hand_over(false, None, channels) {
            true => Acquired::Incomplete,
            false => Acquired::Granted { grant, was_queued },
        };
    }
    if now.ms > not_after.ms() {
        return Acquired::ExpiredCall;
    }

    let (queued, mut enqueued) = (open.permits.queue.len(), false);
    if queued > 0 || !open.fits(request) {
        if *mode != Mode::Try {
            let ticket = call.ticket.map_or(now.us, |ticket| ticket.0.min(now.us));
            enqueued = open.permits.queue.add(ticket, request);
            open.permits.keep_until(now.ms + RETENTION_MS);
            if open.permits.absent.remove(request.client()) {
                open.permits.seen = now.ms;
            }
        }
        if open.hand_over(false, Some((request, lease)), channels) {
            return Acquired::Incomplete;
        }
    }
    let mut own = open.permits.grant_of(request);
    if own.is_none() && open.permits.queue.len() == 0 && open.fits(request) {
        open.permits.absent.clear();
        own = open.grant(request, lease, false);
    }
    if let Some(grant) = own {
        let was_queued = queued > 0 && *mode != Mode::Try && !enqueued;
        return Acquired::Granted { grant, was_queued };
    }

    let earliest = open.settle(true);
    let queue = &open.permits.queue;
    // A try is never queued, so the whole queue is ahead of it.
    let itself = usize::from(*mode != Mode::Try);
    Acquired::Contended(Contended {
        ttl: Duration::from_millis(earliest.saturating_sub(now.ms)),
        ticket: (*mode != Mode::Try).then(|| Ticket(queue.ticket(request).unwrap_or_default())),
        ahead: queue.len().saturating_sub(itself) as u64,
        enqueued,
        own_grant: None,
    })
}

pub(super) fn release(call: &Release, rules: &mut Rules, run: Run<'_>) -> Released {
    let Release {
        keys, request, what, ..
    } = call;
    let now = run.now;
    end(rules, keys, request, run, |open| match *what {
        ReleaseWhat::Grant(fence) | ReleaseWhat::Turns { first: fence, .. } => {
            let is_held = is_held(open, request, fence);
            if is_held {
                open.drop_hold(request);
            }
            Ended::found(is_held)
        }
        ReleaseWhat::Force { fence, .. } => {
            let mut holds = open.permits.holds.iter();
            let found = holds.find(|(_, hold)| hold.fence == fence.get());
            let holder = found.map(|(holder, _)| holder.clone());
            Ended::found(holder.is_some_and(|holder| open.drop_hold(&holder).is_some()))
        }
        ReleaseWhat::Keep {
            fence,
            at_least,
            until,
        } => keep(open, request, fence, until.ms().min(now.ms + millis(at_least))),
    })
}

/// Ends a hold, but its permits stay taken until the deadline.
fn keep(open: &mut OpenPermits<'_>, request: &RequestId, fence: Fence, deadline: u64) -> Ended {
    let kept = request.kept();
    if !is_held(open, request, fence) {
        // The call before this one may have been incomplete.
        let is_kept = is_held(open, &kept, fence);
        return Ended {
            is_found: is_kept,
            is_new: is_kept,
        };
    }
    let ended = open.drop_hold(request);
    // If the time is over, it is a release like any other.
    let keeps = ended.filter(|_| deadline > open.now.ms);
    if let Some(hold) = keeps {
        open.drop_hold(&kept);
        let lease = deadline - open.now.ms;
        let hold = PermitsHold {
            deadline,
            lease,
            pushed: false,
            ..hold
        };
        open.add(&kept, hold);
        let taken_until = &mut open.permits.taken_until;
        *taken_until = deadline.max(*taken_until);
    }
    Ended {
        is_found: true,
        is_new: keeps.is_some(),
    }
}

pub(super) fn shrink(call: &Shrink, rules: &mut Rules, run: Run<'_>) -> Released {
    let Shrink {
        keys,
        request,
        fence,
        permits,
    } = call;
    end(rules, keys, request, run, |open| {
        let is_held = is_held(open, request, *fence);
        if is_held {
            open.shrink(request, *permits);
        }
        Ended::found(is_held)
    })
}

pub(super) fn withdraw(call: &Withdraw, rules: &mut Rules, run: Run<'_>) -> Withdrawn {
    let Withdraw { keys, requests, .. } = call;
    let released = end(rules, keys, &requests[0], run, |open| {
        for request in requests {
            open.permits.queue.remove(request);
            open.drop_hold(request);
        }
        // An earlier call may have removed these requests, and then stopped at its bound.
        Ended {
            is_found: true,
            is_new: true,
        }
    });
    Withdrawn { more: released.more }
}

/// What a call found of what it ends.
struct Ended {
    is_found: bool,
    /// Another request may be the first in the queue now, or more permits stay taken.
    is_new: bool,
}

impl Ended {
    fn found(is_found: bool) -> Ended {
        Ended {
            is_found,
            is_new: false,
        }
    }
}

fn is_held(open: &OpenPermits<'_>, request: &RequestId, fence: Fence) -> bool {
    let hold = open.permits.holds.get(request);
    hold.is_some_and(|hold| hold.fence == fence.get())
}

/// Runs `ending`, and hands over what is free then.
fn end(
    rules: &mut Rules,
    keys: &Keys,
    caller: &RequestId,
    run: Run<'_>,
    ending: impl FnOnce(&mut OpenPermits<'_>) -> Ended,
) -> Released {
    let Run { now, channels, .. } = run;
    let mut open = rules.open_permits(keys, now, caller);
    let ended = ending(&mut open);
    let outcome = match ended.is_found {
        true => ReleaseOutcome::Released,
        false => ReleaseOutcome::Taken,
    };
    let more = open.hand_over(ended.is_new, None, channels);
    Released {
        outcome,
        denied: false,
        more,
        searched: None,
    }
}

/// A renewal works on its own hold alone, so that a slot that moves never stops it. It leaves all timers as
/// they are, and drops no other hold.
pub(super) fn renew(call: &Renew, rules: &mut Rules, now: Now) -> Renewed {
    let lease = millis(call.lease);
    let permits = rules.permits(&call.keys.lock);
    let hold = permits.holds.get_mut(&call.request);
    let Some(hold) = hold.filter(|hold| hold.deadline > now.ms && hold.fence == call.fence.get()) else {
        return Renewed::Taken;
    };
    // A deadline beyond now + its lease is one from before the clock was set back.
    hold.deadline = hold.deadline.min(now.ms + hold.lease);
    let wanted = (now.ms + lease).min(call.cap.ms());
    if wanted > hold.deadline {
        (hold.deadline, hold.lease) = (wanted, lease);
    }
    hold.pushed = false;
    let deadline = hold.deadline;
    // If the clock was set back, the timers are late, and the next call must make them again.
    permits.seen = if now.ms < permits.seen { STALE } else { now.ms };
    permits.keep_until(deadline + RETENTION_MS);
    Renewed::Until(ServerTime::from_ms(deadline))
}

pub(super) fn inspect(call: &Inspect, rules: &mut Rules, now: Now) -> Inspected {
    let permits = &*rules.open_permits(&call.keys, now, &call.request).permits;
    let order = permits.timers.order.iter().take(LISTED);
    let timed = order.filter_map(|(_, request)| Some((request, permits.holds.get(request)?)));
    let mut timed: Vec<_> = timed.collect();
    // A timer may be early.
    timed.sort_by_key(|(request, hold)| (hold.deadline, hold.fence, hold.weight, *request));
    let listed = timed.into_iter().filter_map(|(request, hold)| {
        let (fence, deadline) = (Fence::new(hold.fence)?, ServerTime::from_ms(hold.deadline));
        Some(InspectedHold {
            permits: hold.weight,
            slot: hold.slot,
            ..InspectedHold::of(request, fence, deadline)
        })
    });
    Inspected {
        holders: listed.collect(),
        in_use: permits.used.into(),
        waiting: permits.queue.len() as u64,
        first: permits.queue.order.first().map(|(ticket, _)| Ticket(*ticket)),
    }
}
