//! The rules of a lock: what its scripts do, in Rust.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Absent, Channels, Now, Queue, RETENTION_MS, Rules, Run};
use crate::protocol::ids::RequestId;
use crate::protocol::interface::{Grant, RESERVED, TURNS_AHEAD_US};
use crate::protocol::keys::Keys;
use crate::protocol::operations::inspect::InspectedHold;
use crate::protocol::operations::release::Released;
use crate::protocol::operations::{
    Acquire, Acquired, Contended, Inspect, Inspected, Look, Looked, Mode, Release, ReleaseOutcome,
    ReleaseWhat, Renew, Renewed, Withdraw, Withdrawn,
};
use crate::protocol::push::Push;
use crate::time::server_time::{ServerTime, Ticket, millis};
use crate::types::fence::Fence;
use crate::types::owner::Owner;

/// How many holds one owner may have.
pub(crate) const MAX_HOLDS: usize = 256;

/// One lock: its holder and its queue.
#[derive(Debug, Default)]
pub(crate) struct Lock {
    /// The holder as last written. Holds whose deadline is past stay until the next write. `None` before the
    /// first holder.
    pub(crate) written: Option<Holder>,
    pub(crate) queue: Queue,
    /// The time in ms after which nothing of this lock is needed.
    pub(crate) kept_until: u64,
}

/// The present or last holder.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holder {
    /// 0 means that there was no holder.
    pub(crate) fence: u64,
    /// `None` after a release. This distinguishes a release from an expired lease.
    pub(crate) owner: Option<Owner>,
    /// The request by which the owner became the owner. When that hold has ended, another hold of the owner.
    pub(crate) request: Option<RequestId>,
    /// The grant was pushed, and is not claimed yet.
    pub(crate) pushed: bool,
    pub(crate) holds: BTreeMap<RequestId, Hold>,
    /// Cleared when a call frees or takes the lock, and nobody is queued.
    pub(crate) absent: Absent,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) deadline: u64,
    pub(crate) lease: u64,
}

/// How a hand-over ended.
pub(crate) enum HandOver {
    /// No queued client can be reached. If the caller takes the lock now, this is its fence.
    Nobody(u64),
    Handed,
    More,
}

impl Holder {
    /// The request whose hold ends last, and that hold.
    fn latest(&self) -> Option<(&RequestId, Hold)> {
        // Of equal deadlines, this returns the first; `max_by_key` would return the last.
        self.holds
            .iter()
            .map(|(request, hold)| (request, *hold))
            .reduce(|a, b| if b.1.deadline > a.1.deadline { b } else { a })
    }

    pub(crate) fn deadline(&self) -> u64 {
        self.latest().map_or(0, |(_, hold)| hold.deadline)
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }

    pub(crate) fn is_of(&self, owner: &str) -> bool {
        self.is_held() && self.owner.as_ref().is_some_and(|o| o.as_str() == owner)
    }

    /// The last fence that the last hold can have used. Its client tells it; otherwise it may have used all
    /// that it reserved.
    fn last_fence(&self) -> u64 {
        self.fence + self.owner.as_ref().map_or(0, |_| RESERVED)
    }

    /// The only hold has ended, and has used fences up to `last`.
    pub(crate) fn end_told(&mut self, last: u64) {
        self.owner = None;
        self.fence = last;
    }

    /// Whether a missing hold expired. Otherwise it was released, or the lock has had another owner since.
    pub(crate) fn ran_out(&self, fence: Fence) -> bool {
        self.fence == 0 || (fence.get() == self.fence && self.owner.is_some())
    }

    pub(crate) fn grant_of(&self, request: &RequestId) -> Option<Grant> {
        let hold = self.holds.get(request)?;
        Some(Grant {
            request: request.clone(),
            fence: Fence::new(self.fence)?,
            deadline: ServerTime::from_ms(hold.deadline),
            pushed: self.pushed && self.request.as_ref() == Some(request),
            slot: None,
        })
    }
}

impl Lock {
    /// Returns the holder without the holds whose deadline is past. The client of a grant that was pushed and
    /// not claimed is absent, unless it is the caller's. A deadline beyond now + lease means that the clock
    /// was set back; it is clamped.
    pub(crate) fn read(&mut self, now: Now, caller: &RequestId) -> Holder {
        let mut holder = self.written.clone().unwrap_or_default();
        let unclaimed = holder.request.clone().filter(|_| holder.pushed);
        let absent = &mut holder.absent;
        let mut changed = false;
        holder.holds.retain(|request, hold| {
            if hold.deadline <= now.ms {
                let is_unclaimed = unclaimed.as_ref() == Some(request);
                if is_unclaimed && request.client() != caller.client() {
                    absent.note(request.client());
                }
                changed = true;
                return false;
            }
            if hold.deadline > now.ms + hold.lease {
                hold.deadline = now.ms + hold.lease;
                changed = true;
            }
            true
        });
        if changed && holder.is_held() {
            self.write_holds(&mut holder);
        }
        holder
    }

    fn write(&mut self, holder: &Holder, until: u64) {
        self.written = Some(holder.clone());
        self.keep_until(until + RETENTION_MS);
    }

    pub(crate) fn keep_until(&mut self, until: u64) {
        self.kept_until = self.kept_until.max(until);
    }

    /// Writes the holds of a lock that stays held.
    pub(crate) fn write_holds(&mut self, holder: &mut Holder) {
        let stays = holder
            .request
            .as_ref()
            .is_some_and(|r| holder.holds.contains_key(r));
        if !stays {
            holder.request = holder.latest().map(|(request, _)| request.clone());
            holder.pushed = false;
        }
        self.write(holder, holder.deadline());
    }

    /// Makes `request` the only holder of a free lock.
    pub(crate) fn grant(
        &mut self,
        holder: &mut Holder,
        request: &RequestId,
        fence: u64,
        now: Now,
        lease: u64,
        pushed: bool,
    ) {
        let deadline = now.ms + lease;
        *holder = Holder {
            fence,
            owner: Some(Owner::from_wire(request.owner())),
            request: Some(request.clone()),
            pushed,
            holds: BTreeMap::from([(request.clone(), Hold { deadline, lease })]),
            absent: std::mem::take(&mut holder.absent),
        };
        self.write(holder, deadline);
    }

    /// Leaves the lock without a holder, and somebody queued if there is more to do.
    pub(crate) fn free(&mut self, holder: &Holder, now: Now, more: bool) {
        let mut nobody = Holder {
            fence: holder.last_fence(),
            ..Holder::default()
        };
        if more {
            nobody.absent = holder.absent.clone();
        }
        self.write(&nobody, now.ms);
    }

    /// Grants a free lock to the first request in the queue whose client can be reached, and tells that
    /// client alone. `fence` is the fence of the new owner, and `mine` is the caller's own request and its
    /// lease. A request whose client cannot be reached stays removed.
    #[expect(clippy::too_many_arguments)]
    pub(crate) fn hand_over(
        &mut self,
        holder: &mut Holder,
        mut fence: u64,
        mine: Option<(&RequestId, u64)>,
        prefix: &str,
        now: Now,
        bound: usize,
        channels: &mut dyn Channels,
    ) -> HandOver {
        let mut unreachable = BTreeSet::new();
        for _ in 0..bound {
            let Some(request) = self.queue.pop() else {
                return HandOver::Nobody(fence);
            };
            if let Some((_, lease)) = mine.filter(|(mine, _)| **mine == request) {
                self.grant(holder, &request, fence, now, lease, false);
                return HandOver::Handed;
            }
            if unreachable.contains(request.client()) {
                continue;
            }
            let client = request.client();
            let channel = format!("{prefix}{client}");
            if !holder.absent.has(client) && channels.subscribers(&channel) > 0 {
                let claim_ms = millis(request.claim_window());
                let push = pushed_grant(&request, fence, now, claim_ms)
                    .map(|grant| Push::Granted(vec![grant]).write());
                if push.is_some_and(|push| channels.publish(&channel, &push)) {
                    self.grant(holder, &request, fence, now, claim_ms, true);
                    return HandOver::Handed;
                }
                // No two requests are ever told the same fence.
                fence += 1;
            }
            unreachable.insert(client.to_owned());
        }
        HandOver::More
    }

    /// The lock was released but stays taken for a while. Tells the client of the first reachable request in
    /// the queue to ask for the time, and removes those before it. Returns whether the bound was reached.
    pub(crate) fn tell_first(&mut self, prefix: &str, bound: usize, channels: &mut dyn Channels) -> bool {
        let absent = self.written.as_ref().map(|holder| &holder.absent);
        for _ in 0..bound {
            let Some((_, first)) = self.queue.order.first().cloned() else {
                return false;
            };
            let channel = format!("{prefix}{}", first.client());
            let is_absent = absent.is_some_and(|absent| absent.has(first.client()));
            if !is_absent && channels.subscribers(&channel) > 0 {
                channels.publish(&channel, &Push::Kept.write());
                return false;
            }
            self.queue.remove(&first);
        }
        true
    }
}

pub(super) fn acquire(call: &Acquire, rules: &mut Rules, run: Run<'_>) -> Acquired {
    let Run {
        now,
        not_after,
        channels,
    } = run;
    let bound = rules.bound;
    let Acquire {
        keys, request, mode, ..
    } = call;
    let lease = millis(call.lease);
    let lock = rules.lock(&keys.lock);
    let mut holder = lock.read(now, request);
    let fence = next_fence(&holder, now, call.floor);
    if let Some(grant) = holder.grant_of(request) {
        let was_queued = false;
        return Acquired::Granted { grant, was_queued };
    }
    if now.ms > not_after.ms() {
        return Acquired::ExpiredCall;
    }
    let was_queued = lock.queue.ticket(request).is_some();
    if holder.is_of(request.owner()) {
        if holder.holds.len() >= MAX_HOLDS {
            return Acquired::Full;
        }
        let deadline = now.ms + lease;
        holder.holds.insert(request.clone(), Hold { deadline, lease });
        lock.write_holds(&mut holder);
        lock.queue.remove(request);
    } else if !holder.is_held() && lock.queue.len() == 0 {
        holder.absent.clear();
        lock.grant(&mut holder, request, fence, now, lease, false);
    }
    if let Some(grant) = holder.grant_of(request) {
        return Acquired::Granted { grant, was_queued };
    }

    let mut enqueued = false;
    let mut queued = lock.queue.len();
    if *mode != Mode::Try {
        let latest = if call.floor.is_some() { u64::MAX } else { now.us };
        let ticket = call.ticket.map_or(now.us, |ticket| ticket.0.min(latest));
        enqueued = lock.queue.add(ticket, request);
        // The number is one too large if the request was moved.
        queued += usize::from(enqueued);
        lock.keep_until(now.ms + RETENTION_MS);
        if enqueued && queued == 1 && holder.is_held() {
            tell_wanted(&holder, keys, channels);
        }
        holder.absent.remove(request.client());
        if let Some(written) = lock.written.as_mut().filter(|_| holder.is_held()) {
            written.absent.remove(request.client());
        }
    }
    if !holder.is_held() {
        let mine = Some((request, lease));
        match lock.hand_over(&mut holder, fence, mine, &keys.channel, now, bound, channels) {
            HandOver::More => return Acquired::Incomplete,
            HandOver::Nobody(fence) => lock.grant(&mut holder, request, fence, now, lease, false),
            HandOver::Handed => {}
        }
        if let Some(grant) = holder.grant_of(request) {
            let was_queued = *mode != Mode::Try && !enqueued;
            return Acquired::Granted { grant, was_queued };
        }
    }

    if *mode == Mode::Try {
        tell_wanted(&holder, keys, channels);
    }
    let own_grant = holder.request.as_ref().filter(|r| r.client() == request.client());
    // A try is never queued, so the whole queue is ahead of it.
    let itself = usize::from(*mode != Mode::Try);
    Acquired::Contended(Contended {
        ttl: Duration::from_millis(holder.deadline().saturating_sub(now.ms)),
        ticket: (*mode != Mode::Try).then(|| Ticket(lock.queue.ticket(request).unwrap_or_default())),
        ahead: queued.saturating_sub(itself) as u64,
        enqueued,
        own_grant: own_grant.and_then(|own_grant| holder.grant_of(own_grant)),
    })
}

pub(super) fn release(call: &Release, rules: &mut Rules, run: Run<'_>) -> Released {
    let Run { now, channels, .. } = run;
    let Release {
        keys,
        request,
        what,
        floor,
    } = call;
    if let Some(more) = keep(call, rules, now, channels) {
        return Released {
            outcome: ReleaseOutcome::Released,
            denied: false,
            more,
            searched: None,
        };
    }
    if let ReleaseWhat::Force { fence, .. } = *what {
        let holder = rules.lock(&keys.lock).read(now, request);
        if fence.get() == holder.fence && holder.is_held() {
            tell_wanted(&holder, keys, channels);
        }
    }
    let stands = match *what {
        ReleaseWhat::Grant(fence)
        | ReleaseWhat::Turns { first: fence, .. }
        | ReleaseWhat::Keep { fence, .. } => Some(fence),
        ReleaseWhat::Force { .. } => None,
    };
    end(
        rules,
        keys,
        request,
        stands,
        *floor,
        now,
        channels,
        |_, holder| {
            let (fence, last) = match *what {
                ReleaseWhat::Grant(fence) | ReleaseWhat::Keep { fence, .. } => (fence, Some(fence)),
                ReleaseWhat::Turns { first, last } => (first, Some(last)),
                ReleaseWhat::Force { fence, .. } => (fence, None),
            };
            let fence_counts = fence.get() == holder.fence;
            let ended = match what {
                ReleaseWhat::Grant(_) | ReleaseWhat::Turns { .. } | ReleaseWhat::Keep { .. } => {
                    fence_counts && holder.holds.remove(request).is_some()
                }
                ReleaseWhat::Force { .. } => fence_counts && !std::mem::take(&mut holder.holds).is_empty(),
            };
            match ended {
                true if holder.is_held() => ReleaseOutcome::OneFewer,
                true => {
                    if let Some(last) = last {
                        holder.end_told(last.get());
                    }
                    ReleaseOutcome::Released
                }
                false if holder.ran_out(fence) => ReleaseOutcome::Expired,
                false => ReleaseOutcome::Taken,
            }
        },
    )
}

/// Ends the only hold of a request, but keeps the lock taken for a while, if the call says so. If it did,
/// or had done so before, returns whether it must be called again.
fn keep(call: &Release, rules: &mut Rules, now: Now, channels: &mut dyn Channels) -> Option<bool> {
    let ReleaseWhat::Keep {
        fence,
        at_least,
        until,
    } = call.what
    else {
        return None;
    };
    let Release { keys, request, .. } = call;
    let bound = rules.bound;
    let lock = rules.lock(&keys.lock);
    let deadline = until.ms().min(now.ms + millis(at_least));
    let kept = request.kept();
    let holder = lock.written.as_mut().filter(|holder| {
        deadline > now.ms
            && holder.deadline() > now.ms
            && holder.fence == fence.get()
            && holder.holds.len() == 1
    })?;
    if holder.holds.contains_key(&kept) {
        // The call before this one may have been incomplete.
        return Some(lock.tell_first(&keys.channel, bound, channels));
    }
    holder.holds.remove(request)?;
    let lease = deadline - now.ms;
    holder.holds.insert(kept.clone(), Hold { deadline, lease });
    holder.owner = Some(Owner::from_wire(kept.owner()));
    holder.request = Some(kept);
    holder.pushed = false;
    lock.keep_until(deadline + RETENTION_MS);
    Some(lock.tell_first(&keys.channel, bound, channels))
}

pub(super) fn withdraw(call: &Withdraw, rules: &mut Rules, run: Run<'_>) -> Withdrawn {
    let Run { now, channels, .. } = run;
    let Withdraw {
        keys,
        requests,
        floor,
    } = call;
    let released = end(
        rules,
        keys,
        &requests[0],
        None,
        *floor,
        now,
        channels,
        |queue, holder| {
            let before = holder.holds.len();
            for request in requests {
                queue.remove(request);
                holder.holds.remove(request);
            }
            if before > 0 && !holder.is_held() {
                // No guard has had that hold, but it may have been a vote. The floor is larger than all
                // fences that were used.
                let below = floor.map_or(0, |floor| floor.get() - 1);
                holder.end_told(holder.fence.max(below));
            }
            match holder.holds.len() {
                after if after == before || after == 0 => ReleaseOutcome::Released,
                _ => ReleaseOutcome::OneFewer,
            }
        },
    );
    let bound = rules.bound;
    let lock = rules.lock(&keys.lock);
    // Another request may be the first now. Its client only knows when the lease was to end.
    let stays_taken = lock.written.as_ref().is_some_and(|holder| {
        holder.deadline() > now.ms && holder.request.as_ref().is_some_and(RequestId::is_kept)
    });
    Withdrawn {
        more: released.more || stays_taken && lock.tell_first(&keys.channel, bound, channels),
    }
}

/// Runs `ending`, and hands the lock over if nobody holds it afterwards. An only hold of the caller under the
/// fence `stands` counts whatever the time is, since nobody has had the lock after it.
#[expect(clippy::too_many_arguments, reason = "they are those of a script")]
fn end(
    rules: &mut Rules,
    keys: &Keys,
    caller: &RequestId,
    stands: Option<Fence>,
    floor: Option<Fence>,
    now: Now,
    channels: &mut dyn Channels,
    ending: impl FnOnce(&mut Queue, &mut Holder) -> ReleaseOutcome,
) -> Released {
    let bound = rules.bound;
    let lock = rules.lock(&keys.lock);
    let written = lock
        .written
        .as_mut()
        .filter(|holder| stands.is_some_and(|fence| fence.get() == holder.fence));
    if let Some(holder) = written.filter(|holder| holder.holds.len() == 1) {
        if let Some(hold) = holder.holds.get_mut(caller) {
            hold.deadline = hold.deadline.max(now.ms + 1);
        }
    }
    let mut holder = lock.read(now, caller);
    let was_held = holder.is_held();
    let outcome = ending(&mut lock.queue, &mut holder);
    let mut more = false;
    if outcome == ReleaseOutcome::OneFewer {
        lock.write_holds(&mut holder);
    } else if !holder.is_held() {
        let fence = next_fence(&holder, now, floor);
        let handed = lock.hand_over(&mut holder, fence, None, &keys.channel, now, bound, channels);
        more = matches!(handed, HandOver::More);
        if was_held && !matches!(handed, HandOver::Handed) {
            lock.free(&holder, now, more);
        }
    }
    Released {
        outcome,
        denied: false,
        more,
        searched: None,
    }
}

pub(super) fn renew(call: &Renew, rules: &mut Rules, now: Now) -> Renewed {
    let lock = rules.lock(&call.keys.lock);
    let mut holder = lock.read(now, &call.request);
    let lease = millis(call.lease);
    let wanted = (now.ms + lease).min(call.cap.ms());
    let fence_counts = holder.fence == call.fence.get();
    let is_first = holder.request.as_ref() == Some(&call.request);
    let Some(hold) = holder.holds.get_mut(&call.request).filter(|_| fence_counts) else {
        return if holder.ran_out(call.fence) {
            Renewed::Expired
        } else {
            Renewed::Taken
        };
    };
    if wanted > hold.deadline {
        *hold = Hold {
            deadline: wanted,
            lease,
        };
    }
    let deadline = hold.deadline;
    if is_first {
        holder.pushed = false;
    }
    lock.write_holds(&mut holder);
    Renewed::Until(ServerTime::from_ms(deadline))
}

pub(super) fn look(call: &Look, rules: &mut Rules, now: Now) -> Looked {
    let Look { renew, floor, ticket } = call;
    let lock = rules.lock(&renew.keys.lock);
    let before = lock.written.clone().unwrap_or_default();
    // Several holds keep their fence, because each is renewed and released by it.
    let is_only = before.holds.len() == 1 && before.holds.contains_key(&renew.request);
    let fence = if is_only && before.fence == floor.get() {
        *floor
    } else {
        renew.fence
    };
    let renewal = Renew {
        fence,
        ..renew.clone()
    };
    let renewed = self::renew(&renewal, rules, now);
    if !matches!(renewed, Renewed::Until(_)) {
        return Looked {
            renewed,
            fence: renew.fence,
            earlier: false,
        };
    }
    let lock = rules.lock(&renew.keys.lock);
    let fence = if is_only { fence.max(*floor) } else { fence };
    if let Some(holder) = &mut lock.written {
        holder.fence = fence.get();
    }
    let place = (ticket.0, renew.request.client());
    let first = lock.queue.order.first();
    Looked {
        renewed,
        fence,
        earlier: first.is_some_and(|(ticket, request)| (*ticket, request.client()) < place),
    }
}

pub(super) fn inspect(call: &Inspect, rules: &mut Rules, now: Now) -> Inspected {
    let lock = rules.lock(&call.keys.lock);
    let holder = lock.read(now, &call.request);
    let held = holder.request.as_ref().filter(|_| holder.is_held());
    let holders: Vec<_> = held
        .zip(Fence::new(holder.fence))
        .map(|(request, fence)| InspectedHold {
            holds: holder.holds.len() as u64,
            ..InspectedHold::of(request, fence, ServerTime::from_ms(holder.deadline()))
        })
        .into_iter()
        .collect();
    Inspected {
        in_use: holders.len() as u64,
        holders,
        waiting: lock.queue.len() as u64,
        first: lock.queue.order.first().map(|(ticket, _)| Ticket(*ticket)),
    }
}

/// Tells the holder's client that somebody wants the lock, if that client may retain it.
fn tell_wanted(holder: &Holder, keys: &Keys, channels: &mut dyn Channels) {
    let retaining = holder.request.as_ref().filter(|request| request.is_retaining());
    if let (Some(request), Some(fence)) = (retaining, Fence::new(holder.fence)) {
        let channel = format!("{}{}", keys.channel, request.client());
        channels.publish(&channel, &Push::Wanted(fence).write());
    }
}

/// The fence of the next owner. It is larger than all that the last hold can have used, even if the clock was
/// set back, or the lock was lost.
pub(crate) fn next_fence(holder: &Holder, now: Now, floor: Option<Fence>) -> u64 {
    match floor {
        None if holder.fence == 0 => now.us + TURNS_AHEAD_US,
        _ => now.or_floor(floor).max(holder.last_fence() + 1),
    }
}

/// The grant of a hand-over with this fence, or `None` if there is no larger fence.
fn pushed_grant(request: &RequestId, fence: u64, now: Now, claim_ms: u64) -> Option<Grant> {
    Some(Grant {
        request: request.clone(),
        fence: Fence::new(fence)?,
        deadline: ServerTime::from_ms(now.ms + claim_ms),
        pushed: true,
        slot: None,
    })
}
