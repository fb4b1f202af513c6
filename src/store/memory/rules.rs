//! The rules of the scripts in plain Rust, with time as an argument: what in-memory locks run by, and the model
//! that the scripts are tested against. A rule is changed here and in `lua/` together.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::key::{Owner, Request};
use crate::lease::{Fence, ServerTime, Ticket, millis};
use crate::store::{
    Acquire, Acquired, Contended, Grant, Holding, Inspect, Inspected, Mode, Push, Release, ReleaseOutcome,
    ReleaseWhat, Released, Renew, Renewed, SpinAcquire, SpinAcquired, SpinRelease, SpinReleased,
};

/// How long a lock is remembered after its deadline, with its fence.
const KEPT_MS: u64 = 60_000;
/// How many a call removes from the queue at most before it answers `more`.
pub(super) const BOUND: usize = 10_000;
/// With fewer entries than this nothing is swept.
const SWEEP_FROM: usize = 1024;

/// The time of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// For tickets and fences.
    pub(super) us: u64,
    /// For deadlines.
    pub(super) ms: u64,
}

/// Who listens where.
pub(super) trait Channels {
    /// How many receive what is published on a channel.
    fn receivers(&self, channel: &str) -> usize;

    /// Publishes, and returns how many receive it.
    fn publish(&mut self, channel: &str, message: &str) -> usize;
}

/// All locks of one store.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) locks: HashMap<String, Lock>,
    pub(super) spins: HashMap<String, Spin>,
    bound: usize,
    sweep_at: usize,
}

/// One lock: its holder, its queue, and its clients' records.
#[derive(Debug, Default)]
pub(super) struct Lock {
    /// As last written: holds whose deadline is past stay until the next write. `None` before the first holder.
    pub(super) written: Option<Holder>,
    pub(super) queue: Queue,
    /// Client → server time (ms) until which it counts as alive.
    pub(super) clients: HashMap<String, u64>,
    /// When nothing of this is needed any more, in ms.
    kept_until: u64,
}

/// Who holds, or held last.
#[derive(Clone, Debug, Default)]
pub(super) struct Holder {
    /// 0: there was none.
    pub(super) fence: u64,
    /// `None` after a release: tells it from a lease that ran out.
    pub(super) owner: Option<Owner>,
    /// By which the owner became the owner, or another hold of its when that is over.
    pub(super) request: Option<Request>,
    /// The grant was pushed, and is not claimed yet.
    pub(super) pushed: bool,
    pub(super) holds: BTreeMap<Request, Hold>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) deadline: u64,
    pub(super) lease: u64,
}

/// The queue in the order of a sorted set: by ticket, then by request.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) order: BTreeSet<(u64, Request)>,
    tickets: HashMap<Request, u64>,
}

#[derive(Debug)]
pub(super) struct Spin {
    pub(super) owner: Owner,
    pub(super) count: u64,
    until: u64,
}

enum HandOver {
    Nobody,
    Handed,
    More,
}

impl Queue {
    fn len(&self) -> usize {
        self.order.len()
    }

    fn ticket(&self, request: &Request) -> Option<u64> {
        self.tickets.get(request).copied()
    }

    /// Whether it was not queued before; if it was, it keeps its place.
    fn add(&mut self, ticket: u64, request: &Request) -> bool {
        if self.tickets.contains_key(request) {
            return false;
        }
        self.tickets.insert(request.clone(), ticket);
        self.order.insert((ticket, request.clone()))
    }

    fn remove(&mut self, request: &Request) {
        if let Some(ticket) = self.tickets.remove(request) {
            self.order.remove(&(ticket, request.clone()));
        }
    }

    fn pop(&mut self) -> Option<Request> {
        let (_, request) = self.order.pop_first()?;
        self.tickets.remove(&request);
        Some(request)
    }
}

impl Holder {
    /// The hold that ends last, and whose it is.
    pub(super) fn latest(&self) -> Option<(&Request, Hold)> {
        // Of equals the first: `max_by_key` would return the last.
        self.holds
            .iter()
            .map(|(request, hold)| (request, *hold))
            .reduce(|a, b| if b.1.deadline > a.1.deadline { b } else { a })
    }

    fn deadline(&self) -> u64 {
        self.latest().map_or(0, |(_, hold)| hold.deadline)
    }

    fn is_held(&self) -> bool {
        !self.holds.is_empty()
    }

    fn is_of(&self, owner: &str) -> bool {
        self.is_held() && self.owner.as_ref().is_some_and(|o| o.as_str() == owner)
    }

    /// Whether a hold that is gone ran out, rather than that somebody has had the lock since or released it.
    fn ran_out(&self, fence: Option<Fence>) -> bool {
        self.fence == 0 || (fence.is_some_and(|f| f.get() == self.fence) && self.owner.is_some())
    }

    fn grant_of(&self, request: &Request) -> Option<Grant> {
        let hold = self.holds.get(request)?;
        Some(Grant {
            request: request.clone(),
            fence: Fence::new(self.fence)?,
            deadline: ServerTime::from_ms(hold.deadline),
            pushed: self.pushed && self.request.as_ref() == Some(request),
        })
    }
}

impl Lock {
    /// Who holds now, without the holds whose deadline is past; and the clients of those, if they are still to be
    /// taken for dead. A deadline beyond now + lease means that the clock was set back, and is clamped.
    fn read(&mut self, now: Now, clients_too: bool) -> (Holder, Vec<String>) {
        let mut holder = self.written.clone().unwrap_or_default();
        let mut ended = Vec::new();
        let mut changed = false;
        holder.holds.retain(|request, hold| {
            if hold.deadline <= now.ms {
                ended.push(request.client().to_owned());
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
            if clients_too {
                self.take_for_dead(&ended);
            }
            ended.clear();
        }
        (holder, ended)
    }

    fn take_for_dead(&mut self, clients: &[String]) {
        for client in clients {
            self.clients.remove(client);
        }
    }

    fn write(&mut self, holder: &Holder, until: u64) {
        self.written = Some(holder.clone());
        self.keep_until(until + KEPT_MS);
    }

    fn keep_until(&mut self, until: u64) {
        self.kept_until = self.kept_until.max(until);
    }

    /// Writes the holds of a lock that goes on being held.
    fn write_holds(&mut self, holder: &mut Holder) {
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

    /// Makes `request` the only holder of a lock that is free.
    fn grant(&mut self, holder: &mut Holder, request: &Request, now: Now, lease: u64, pushed: bool) {
        let deadline = now.ms + lease;
        *holder = Holder {
            fence: next_fence(holder, now),
            owner: Some(Owner::from_wire(request.owner())),
            request: Some(request.clone()),
            pushed,
            holds: BTreeMap::from([(request.clone(), Hold { deadline, lease })]),
        };
        self.write(holder, deadline);
    }

    /// Leaves the lock with nobody.
    fn free(&mut self, holder: &Holder, now: Now) {
        let nobody = Holder {
            fence: holder.fence,
            ..Holder::default()
        };
        self.write(&nobody, now.ms);
    }

    /// Gives a free lock to the first in the queue who can be reached, and tells that one alone. `mine` is the
    /// caller's own request and its lease. Who can't be reached stays removed, with its client's record.
    #[expect(clippy::too_many_arguments)]
    fn hand_over(
        &mut self,
        holder: &mut Holder,
        ended: &[String],
        mine: Option<(&Request, u64)>,
        prefix: &str,
        now: Now,
        bound: usize,
        channels: &mut dyn Channels,
    ) -> HandOver {
        self.take_for_dead(ended);
        let mut unreachable = BTreeSet::new();
        for _ in 0..bound {
            let Some(request) = self.queue.pop() else {
                return HandOver::Nobody;
            };
            if let Some((_, lease)) = mine.filter(|(mine, _)| **mine == request) {
                self.grant(holder, &request, now, lease, false);
                return HandOver::Handed;
            }
            if unreachable.contains(request.client()) {
                continue;
            }
            let client = request.client();
            if self.clients.get(client).is_some_and(|until| *until > now.ms) {
                let grant_ms = millis(request.grant());
                let heard = next_grant(holder, &request, now, grant_ms).is_some_and(|grant| {
                    channels.publish(&format!("{prefix}{client}"), &Push::write(&grant)) > 0
                });
                if heard {
                    self.grant(holder, &request, now, grant_ms, true);
                    return HandOver::Handed;
                }
            }
            self.clients.remove(client);
            unreachable.insert(client.to_owned());
        }
        HandOver::More
    }
}

fn next_fence(holder: &Holder, now: Now) -> u64 {
    now.us.max(holder.fence + 1)
}

/// The grant that the next hand-over to `request` makes.
fn next_grant(holder: &Holder, request: &Request, now: Now, grant_ms: u64) -> Option<Grant> {
    Some(Grant {
        request: request.clone(),
        fence: Fence::new(next_fence(holder, now))?,
        deadline: ServerTime::from_ms(now.ms + grant_ms),
        pushed: true,
    })
}

impl Rules {
    pub(super) fn new() -> Rules {
        Rules {
            locks: HashMap::new(),
            spins: HashMap::new(),
            bound: BOUND,
            sweep_at: SWEEP_FROM,
        }
    }

    /// The same rules, but removing so few at most before the answer is `more`.
    #[cfg(test)]
    pub(super) fn with_bound(bound: usize) -> Rules {
        Rules {
            bound,
            ..Rules::new()
        }
    }

    /// Drops what is over. It costs each call little: it looks at everything only when the number of entries has
    /// doubled since the last time.
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

    pub(super) fn acquire(&mut self, call: &Acquire, now: Now, channels: &mut dyn Channels) -> Acquired {
        let bound = self.bound;
        let Acquire {
            keys, request, mode, ..
        } = call;
        let (lease, heartbeat) = (millis(call.lease), millis(call.heartbeat));
        let lock = self.lock(&keys.lock);
        let (mut holder, ended) = lock.read(now, true);
        if let Some(grant) = holder.grant_of(request) {
            return Acquired::Granted(grant);
        }
        if now.ms > call.not_after.ms() {
            return Acquired::Late;
        }
        let alive = lock
            .clients
            .get(request.client())
            .is_some_and(|until| *until > now.ms);
        if *mode == Mode::Question && !alive {
            return Acquired::Gone;
        }
        if holder.is_of(request.owner()) {
            let deadline = now.ms + lease;
            holder.holds.insert(request.clone(), Hold { deadline, lease });
            lock.write_holds(&mut holder);
            lock.queue.remove(request);
        } else if !holder.is_held() && lock.queue.len() == 0 {
            lock.take_for_dead(&ended);
            lock.grant(&mut holder, request, now, lease, false);
        }
        if let Some(grant) = holder.grant_of(request) {
            return Acquired::Granted(grant);
        }

        let mut enqueued = false;
        if *mode != Mode::Try {
            let ticket = call.ticket.map_or(now.us, |ticket| ticket.0.min(now.us));
            enqueued = lock.queue.add(ticket, request);
            lock.keep_until(now.ms + heartbeat + KEPT_MS);
        }
        let queued = lock.queue.len();
        if !holder.is_held() {
            let mine = Some((request, lease));
            match lock.hand_over(&mut holder, &ended, mine, &keys.channel, now, bound, channels) {
                HandOver::More => return Acquired::More,
                HandOver::Nobody => lock.grant(&mut holder, request, now, lease, false),
                HandOver::Handed => {}
            }
            if let Some(grant) = holder.grant_of(request) {
                return Acquired::Granted(grant);
            }
        }

        if matches!(mode, Mode::Open | Mode::Question) {
            lock.clients.retain(|_, until| *until > now.ms);
            lock.clients
                .insert(request.client().to_owned(), now.ms + heartbeat);
        }
        let seen = *mode == Mode::Question
            && channels.receivers(&format!("{}{}", keys.channel, request.client())) > 0;
        let sibling = holder.request.as_ref().filter(|r| r.client() == request.client());
        // A try is never queued, so all of the queue is ahead of it.
        let itself = usize::from(*mode != Mode::Try);
        Acquired::Contended(Contended {
            ttl: Duration::from_millis(holder.deadline().saturating_sub(now.ms)),
            ticket: (*mode != Mode::Try).then(|| Ticket(lock.queue.ticket(request).unwrap_or_default())),
            ahead: queued.saturating_sub(itself) as u64,
            seen,
            enqueued,
            denied: false,
            sibling: sibling.and_then(|sibling| holder.grant_of(sibling)),
        })
    }

    pub(super) fn release(&mut self, call: &Release, now: Now, channels: &mut dyn Channels) -> Released {
        let bound = self.bound;
        let Release { keys, request, what } = call;
        let lock = self.lock(&keys.lock);
        let (mut holder, ended) = lock.read(now, true);
        let was_held = holder.is_held();
        let fence = match what {
            ReleaseWhat::Grant(fence) | ReleaseWhat::Force(fence) => Some(*fence),
            ReleaseWhat::Out => None,
        };
        let fence_counts = fence.is_none_or(|fence| fence.get() == holder.fence);
        let mut outcome = None;
        if let ReleaseWhat::Force(_) = what {
            if was_held && fence_counts {
                holder.holds.clear();
                outcome = Some(ReleaseOutcome::Released);
            }
        } else if fence_counts && holder.holds.remove(request).is_some() {
            outcome = Some(if holder.is_held() {
                ReleaseOutcome::OneFewer
            } else {
                ReleaseOutcome::Released
            });
        }
        if *what == ReleaseWhat::Out {
            lock.queue.remove(request);
            outcome = outcome.or(Some(ReleaseOutcome::Released));
        }
        let outcome = outcome.unwrap_or(if holder.ran_out(fence) {
            ReleaseOutcome::Expired
        } else {
            ReleaseOutcome::Taken
        });

        let mut more = false;
        if outcome == ReleaseOutcome::OneFewer {
            lock.write_holds(&mut holder);
        } else if !holder.is_held() {
            let handed = lock.hand_over(&mut holder, &ended, None, &keys.channel, now, bound, channels);
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

    pub(super) fn renew(&mut self, call: &Renew, now: Now) -> Renewed {
        let lock = self.lock(&call.keys.lock);
        let (mut holder, _) = lock.read(now, false);
        let lease = millis(call.lease);
        let wanted = (now.ms + lease).min(call.cap.ms());
        let fence_counts = holder.fence == call.fence.get();
        let is_first = holder.request.as_ref() == Some(&call.request);
        let Some(hold) = holder.holds.get_mut(&call.request).filter(|_| fence_counts) else {
            return if holder.ran_out(Some(call.fence)) {
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

    pub(super) fn inspect(&mut self, call: &Inspect, now: Now) -> Inspected {
        let lock = self.lock(&call.keys.lock);
        let (holder, _) = lock.read(now, false);
        let held = holder.owner.clone().filter(|_| holder.is_held());
        Inspected {
            holder: held.zip(Fence::new(holder.fence)).map(|(owner, fence)| Holding {
                owner,
                fence,
                holds: holder.holds.len() as u64,
                deadline: ServerTime::from_ms(holder.deadline()),
            }),
            waiting: lock.queue.len() as u64,
        }
    }

    pub(super) fn spin_acquire(&mut self, call: &SpinAcquire, now: Now) -> SpinAcquired {
        let until = now.ms + millis(call.lease);
        let held = self
            .spins
            .get_mut(&call.keys.spin)
            .filter(|spin| spin.until > now.ms);
        match held {
            Some(spin) if spin.owner == call.owner => {
                spin.count += 1;
                spin.until = spin.until.max(until);
                SpinAcquired::Held(spin.count)
            }
            Some(spin) => SpinAcquired::Busy(Duration::from_millis(spin.until - now.ms)),
            None => {
                let spin = Spin {
                    owner: call.owner.clone(),
                    count: 1,
                    until,
                };
                self.spins.insert(call.keys.spin.clone(), spin);
                SpinAcquired::Held(1)
            }
        }
    }

    pub(super) fn spin_release(&mut self, call: &SpinRelease, now: Now) -> SpinReleased {
        let held = self
            .spins
            .get_mut(&call.keys.spin)
            .filter(|spin| spin.until > now.ms);
        let Some(spin) = held.filter(|spin| spin.owner == call.owner) else {
            return SpinReleased::NotHeld;
        };
        spin.count -= 1;
        let left = spin.count;
        if left == 0 {
            self.spins.remove(&call.keys.spin);
        }
        SpinReleased::Left(left)
    }
}
