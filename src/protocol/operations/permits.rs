//! The rules of the operations for permits: those of a semaphore or a read/write lock. The arguments and the
//! replies are those of a lock.

use std::time::Duration;

use super::inspect::InspectedHold;
use super::release::Released;
use super::shrink::Shrink;
use super::{
    Acquire, Acquired, Contended, Inspect, Inspected, Mode, Release, ReleaseOutcome, ReleaseWhat, Renew,
    Renewed, Withdraw, Withdrawn,
};
use crate::protocol::ids::RequestId;
use crate::protocol::keys::Keys;
use crate::protocol::rules::Rules;
use crate::protocol::rules::lock::{Now, RETENTION_MS, Run, note_alive};
use crate::protocol::rules::permits::{OpenPermits, PermitsHold, STALE};
use crate::time::server_time::{ServerTime, Ticket, millis};
use crate::types::fence::Fence;

/// How many holds an inspection lists.
const LISTED: usize = 100;

pub(super) fn acquire(call: &Acquire, rules: &mut Rules, run: Run<'_>) -> Acquired {
    let Run {
        now,
        not_after,
        channels,
    } = run;
    let Acquire {
        keys, request, mode, ..
    } = call;
    let (lease, heartbeat) = (millis(call.lease), millis(call.heartbeat));
    let mut open = rules.open_permits(keys, now, Some(request.client()));
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
    let seen =
        *mode == Mode::Poll && channels.subscribers(&format!("{}{}", keys.channel, request.client())) > 0;
    if *mode == Mode::Poll && !open.permits.is_alive(request.client(), now) {
        return Acquired::NotRegistered { seen };
    }

    let (queued, mut enqueued) = (open.permits.queue.len(), false);
    if queued > 0 || !open.fits(request) {
        if *mode != Mode::Try {
            let ticket = call.ticket.map_or(now.us, |ticket| ticket.0.min(now.us));
            enqueued = open.permits.queue.add(ticket, request);
            open.permits.keep_until(now.ms + heartbeat + RETENTION_MS);
        }
        if open.hand_over(false, Some((request, lease)), channels) {
            return Acquired::Incomplete;
        }
    }
    let mut own = open.permits.grant_of(request);
    if own.is_none() && open.permits.queue.len() == 0 && open.fits(request) {
        own = open.grant(request, lease, false);
    }
    if let Some(grant) = own {
        let was_queued = queued > 0 && *mode != Mode::Try && !enqueued;
        return Acquired::Granted { grant, was_queued };
    }

    if matches!(mode, Mode::Register | Mode::Poll) {
        let clients = &mut open.permits.clients;
        note_alive(clients, request.client(), now.ms + heartbeat, now, open.bound);
    }
    let earliest = open.settle(true);
    let queue = &open.permits.queue;
    // A try is never queued, so the whole queue is ahead of it.
    let itself = usize::from(*mode != Mode::Try);
    Acquired::Contended(Contended {
        ttl: Duration::from_millis(earliest.saturating_sub(now.ms)),
        ticket: (*mode != Mode::Try).then(|| Ticket(queue.ticket(request).unwrap_or_default())),
        ahead: queue.len().saturating_sub(itself) as u64,
        seen,
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
        return Ended::found(is_held(open, &kept, fence));
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
        let queued = open.permits.queue.len();
        for request in requests {
            open.permits.queue.remove(request);
            open.drop_hold(request);
        }
        Ended {
            is_found: true,
            is_new: open.permits.queue.len() < queued,
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
    let mut open = rules.open_permits(keys, now, Some(caller.client()));
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
    let permits = &*rules.open_permits(&call.keys, now, None).permits;
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
