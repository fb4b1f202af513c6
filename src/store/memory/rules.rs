//! The rules of the scripts in plain Rust, with time as an argument. In-memory locks use them, and the
//! scripts are tested against them. A rule must be changed here and in `lua/` together.

pub(crate) mod spin;

use std::collections::HashMap;
use std::time::Duration;

use self::spin::Spin;
use super::lock::{Channels, HandOver, Hold, Holder, Lock, MAX_HOLDS, Now, Queue, RETENTION_MS, next_fence};
use crate::fence::Fence;
use crate::owner::Owner;
use crate::store::ids::{ClientId, RequestId};
use crate::store::keys::Keys;
use crate::store::{
    Acquire, Acquired, Contended, Holding, Inspect, Inspected, Look, Looked, Mode, Push, Release,
    ReleaseOutcome, ReleaseWhat, Released, Renew, Renewed, Withdraw, Withdrawn,
};
use crate::time::server_time::{ServerTime, Ticket, millis};

/// How many requests a call removes from the queue before it answers `more`, as in the scripts.
pub(super) const BOUND: usize = 500;
/// Nothing is swept while there are fewer entries than this.
const SWEEP_FROM: usize = 1024;

#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) locks: HashMap<String, Lock>,
    pub(crate) spins: HashMap<String, Spin>,
    bound: usize,
    sweep_at: usize,
}

impl Rules {
    /// Each call removes at most `bound` requests from the queue before it answers `more`.
    pub(crate) fn new(bound: usize) -> Rules {
        Rules {
            locks: HashMap::new(),
            spins: HashMap::new(),
            bound,
            sweep_at: SWEEP_FROM,
        }
    }

    /// Drops expired entries. This costs each call little, because it visits all entries only when their
    /// number has doubled since the last time.
    pub(super) fn sweep(&mut self, now: Now) {
        if self.locks.len() + self.spins.len() < self.sweep_at {
            return;
        }
        self.locks.retain(|_, lock| lock.kept_until > now.ms);
        self.spins.retain(|_, spin| spin.until > now.ms);
        self.sweep_at = (2 * (self.locks.len() + self.spins.len())).max(SWEEP_FROM);
    }

    fn lock(&mut self, key: &str) -> &mut Lock {
        self.locks.entry(key.to_owned()).or_default()
    }

    /// `not_after` is the time that the call's stamp returned.
    pub(crate) fn acquire(
        &mut self,
        call: &Acquire,
        not_after: ServerTime,
        now: Now,
        channels: &mut dyn Channels,
    ) -> Acquired {
        let bound = self.bound;
        let Acquire {
            keys, request, mode, ..
        } = call;
        let (lease, heartbeat) = (millis(call.lease), millis(call.heartbeat));
        let lock = self.lock(&keys.lock);
        let (mut holder, dead) = lock.read(now, Some(request.client()));
        let fence = next_fence(&holder, now, call.floor);
        if let Some(grant) = holder.grant_of(request) {
            let was_queued = false;
            return Acquired::Granted { grant, was_queued };
        }
        if now.ms > not_after.ms() {
            return Acquired::ExpiredCall;
        }
        let alive = lock
            .clients
            .get(request.client())
            .is_some_and(|until| *until > now.ms);
        let seen =
            *mode == Mode::Poll && channels.subscribers(&format!("{}{}", keys.channel, request.client())) > 0;
        if *mode == Mode::Poll && !alive {
            return Acquired::NotRegistered { seen };
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
            lock.take_for_dead(dead.as_deref());
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
            lock.keep_until(now.ms + heartbeat + RETENTION_MS);
        }
        if !holder.is_held() {
            let mine = Some((request, lease));
            match lock.hand_over(
                &mut holder,
                fence,
                dead.as_deref(),
                mine,
                &keys.channel,
                now,
                bound,
                channels,
            ) {
                HandOver::More => return Acquired::Incomplete,
                HandOver::Nobody(fence) => lock.grant(&mut holder, request, fence, now, lease, false),
                HandOver::Handed => {}
            }
            if let Some(grant) = holder.grant_of(request) {
                let was_queued = *mode != Mode::Try && !enqueued;
                return Acquired::Granted { grant, was_queued };
            }
        }

        if matches!(mode, Mode::Register | Mode::Poll) {
            lock.clients.retain(|_, until| *until > now.ms);
            lock.clients
                .insert(request.client().to_owned(), now.ms + heartbeat);
        }
        let own_grant = holder.request.as_ref().filter(|r| r.client() == request.client());
        // A try is never queued, so the whole queue is ahead of it.
        let itself = usize::from(*mode != Mode::Try);
        Acquired::Contended(Contended {
            ttl: Duration::from_millis(holder.deadline().saturating_sub(now.ms)),
            ticket: (*mode != Mode::Try).then(|| Ticket(lock.queue.ticket(request).unwrap_or_default())),
            ahead: queued.saturating_sub(itself) as u64,
            seen,
            enqueued,
            own_grant: own_grant.and_then(|own_grant| holder.grant_of(own_grant)),
        })
    }

    pub(crate) fn release(&mut self, call: &Release, now: Now, channels: &mut dyn Channels) -> Released {
        let Release {
            keys,
            request,
            what,
            floor,
        } = call;
        if self.keep(call, now, channels) {
            return Released {
                outcome: ReleaseOutcome::Released,
                denied: false,
                more: false,
            };
        }
        self.end(keys, request, *floor, now, channels, |_, holder| {
            let (fence, last) = match *what {
                ReleaseWhat::Grant(fence) | ReleaseWhat::Keep { fence, .. } => (fence, Some(fence)),
                ReleaseWhat::Turns { first, last } => (first, Some(last)),
                ReleaseWhat::Force(fence) => (fence, None),
            };
            let fence_counts = fence.get() == holder.fence;
            let ended = match what {
                ReleaseWhat::Grant(_) | ReleaseWhat::Turns { .. } | ReleaseWhat::Keep { .. } => {
                    fence_counts && holder.holds.remove(request).is_some()
                }
                ReleaseWhat::Force(_) => fence_counts && !std::mem::take(&mut holder.holds).is_empty(),
            };
            match ended {
                true if holder.is_held() => ReleaseOutcome::OneFewer,
                true => {
                    if let Some(last) = last {
                        holder.end_told(last);
                    }
                    ReleaseOutcome::Released
                }
                false if holder.ran_out(fence) => ReleaseOutcome::Expired,
                false => ReleaseOutcome::Taken,
            }
        })
    }

    /// Ends the only hold of a request, but keeps the lock taken for a while, if the call says so. Returns
    /// whether it did, or had done so before.
    fn keep(&mut self, call: &Release, now: Now, channels: &mut dyn Channels) -> bool {
        let ReleaseWhat::Keep {
            fence,
            at_least,
            until,
        } = call.what
        else {
            return false;
        };
        let Release { keys, request, .. } = call;
        let lock = self.lock(&keys.lock);
        let deadline = until.ms().min(now.ms + millis(at_least));
        let kept = request.kept();
        let Some(holder) = lock.written.as_mut().filter(|holder| {
            deadline > now.ms
                && holder.deadline() > now.ms
                && holder.fence == fence.get()
                && holder.holds.len() == 1
        }) else {
            return false;
        };
        if holder.holds.contains_key(&kept) {
            return true;
        }
        if holder.holds.remove(request).is_none() {
            return false;
        }
        let lease = deadline - now.ms;
        holder.holds.insert(kept.clone(), Hold { deadline, lease });
        holder.owner = Some(Owner::from_wire(kept.owner()));
        holder.request = Some(kept);
        holder.pushed = false;
        lock.keep_until(deadline + RETENTION_MS);
        if let Some((_, first)) = lock.queue.order.first() {
            let channel = format!("{}{}", keys.channel, first.client());
            channels.publish(&channel, &Push::Kept.write());
        }
        true
    }

    pub(crate) fn withdraw(&mut self, call: &Withdraw, now: Now, channels: &mut dyn Channels) -> Withdrawn {
        let Withdraw {
            keys,
            requests,
            floor,
        } = call;
        let released = self.end(keys, &requests[0], *floor, now, channels, |queue, holder| {
            let before = holder.holds.len();
            for request in requests {
                queue.remove(request);
                holder.holds.remove(request);
            }
            if let Some(floor) = floor.filter(|_| before > 0 && !holder.is_held()) {
                holder.end_below(floor);
            }
            match holder.holds.len() {
                after if after == before || after == 0 => ReleaseOutcome::Released,
                _ => ReleaseOutcome::OneFewer,
            }
        });
        Withdrawn { more: released.more }
    }

    /// Runs `ending`, and hands the lock over if nobody holds it afterwards.
    fn end(
        &mut self,
        keys: &Keys,
        caller: &RequestId,
        floor: Option<Fence>,
        now: Now,
        channels: &mut dyn Channels,
        ending: impl FnOnce(&mut Queue, &mut Holder) -> ReleaseOutcome,
    ) -> Released {
        let bound = self.bound;
        let lock = self.lock(&keys.lock);
        let (mut holder, dead) = lock.read(now, Some(caller.client()));
        let was_held = holder.is_held();
        let outcome = ending(&mut lock.queue, &mut holder);
        let mut more = false;
        if outcome == ReleaseOutcome::OneFewer {
            lock.write_holds(&mut holder);
        } else if !holder.is_held() {
            let fence = next_fence(&holder, now, floor);
            let handed = lock.hand_over(
                &mut holder,
                fence,
                dead.as_deref(),
                None,
                &keys.channel,
                now,
                bound,
                channels,
            );
            more = matches!(handed, HandOver::More);
            if was_held && !matches!(handed, HandOver::Handed) {
                lock.free(&holder, now);
            }
        }
        Released {
            outcome,
            denied: false,
            more,
        }
    }

    pub(crate) fn renew(&mut self, call: &Renew, now: Now) -> Renewed {
        let lock = self.lock(&call.keys.lock);
        let (mut holder, _) = lock.read(now, None);
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

    pub(crate) fn look(&mut self, call: &Look, now: Now) -> Looked {
        let Look { renew, floor, ticket } = call;
        let lock = self.lock(&renew.keys.lock);
        let before = lock.written.clone().unwrap_or_default();
        // Several holds keep their fence, because each is renewed and released by it.
        let is_only = before.holds.len() == 1 && before.holds.contains_key(&renew.request);
        let fence = if is_only && before.fence == floor.get() {
            *floor
        } else {
            renew.fence
        };
        let renewed = self.renew(
            &Renew {
                fence,
                ..renew.clone()
            },
            now,
        );
        if !matches!(renewed, Renewed::Until(_)) {
            return Looked {
                renewed,
                fence: renew.fence,
                earlier: false,
            };
        }
        let lock = self.lock(&renew.keys.lock);
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

    pub(crate) fn inspect(&mut self, call: &Inspect, now: Now) -> Inspected {
        let lock = self.lock(&call.keys.lock);
        let (holder, _) = lock.read(now, None);
        let held = holder.request.as_ref().filter(|_| holder.is_held());
        Inspected {
            holder: held
                .zip(Fence::new(holder.fence))
                .map(|(request, fence)| Holding {
                    owner: Owner::from_wire(request.owner()),
                    client: ClientId::from_wire(request.client()),
                    fence,
                    holds: holder.holds.len() as u64,
                    deadline: ServerTime::from_ms(holder.deadline()),
                    kept: request.is_kept(),
                }),
            waiting: lock.queue.len() as u64,
            first: lock.queue.order.first().map(|(ticket, _)| Ticket(*ticket)),
        }
    }
}
