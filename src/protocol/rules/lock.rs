//! One lock as a server keeps it, and the parts that operations share. The counterpart of `lua/lib/`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::protocol::ids::RequestId;
use crate::protocol::interface::{Grant, RESERVED, TURNS_AHEAD_US};
use crate::protocol::push::Push;
use crate::time::server_time::{ServerTime, millis};
use crate::types::fence::Fence;
use crate::types::owner::Owner;

/// How many holds one owner may have.
pub(crate) const MAX_HOLDS: usize = 256;
/// How long a lock and its fence are kept after its deadline.
pub(crate) const RETENTION_MS: u64 = 60_000;
/// How far a floor may be ahead of the server's clock.
const MAX_AHEAD_US: u64 = 86_400_000_000;

/// The time of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// For tickets and fences.
    pub(crate) us: u64,
    /// For deadlines.
    pub(crate) ms: u64,
}

impl Now {
    /// The least fence that a call grants by its floor, or without one by the time.
    pub(crate) fn or_floor(self, floor: Option<Fence>) -> u64 {
        floor.map_or(self.us, Fence::get)
    }

    /// Whether a call with this floor must do nothing.
    pub(crate) fn is_behind(self, floor: Option<Fence>) -> bool {
        self.or_floor(floor) > self.us + MAX_AHEAD_US
    }
}

/// What a call finds when it runs.
pub(crate) struct Run<'a> {
    pub(crate) now: Now,
    /// The time that the call's stamp returned.
    pub(crate) not_after: ServerTime,
    pub(crate) channels: &'a mut dyn Channels,
}

/// The channels and their subscribers.
pub(crate) trait Channels {
    /// The number of subscribers that the server counts. Other subscribers, at a replica, may hear messages
    /// too.
    fn subscribers(&self, channel: &str) -> usize;

    /// Publishes a message if the caller has the right to. Returns whether it did.
    fn publish(&mut self, channel: &str, message: &str) -> bool;
}

/// One lock: its holder, its queue, and its clients' presence records.
#[derive(Debug, Default)]
pub(crate) struct Lock {
    /// The holder as last written. Holds whose deadline is past stay until the next write. `None` before the
    /// first holder.
    pub(crate) written: Option<Holder>,
    pub(crate) queue: Queue,
    /// Client → server time (ms) until which the client counts as alive.
    pub(crate) clients: HashMap<String, u64>,
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
    /// The request by which the owner became the owner. When that hold is over, another hold of the owner.
    pub(crate) request: Option<RequestId>,
    /// The grant was pushed, and is not claimed yet.
    pub(crate) pushed: bool,
    pub(crate) holds: BTreeMap<RequestId, Hold>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) deadline: u64,
    pub(crate) lease: u64,
}

/// Notes that a client is alive, and removes some of those that are dead, as many as the bound.
pub(crate) fn note_alive(
    clients: &mut HashMap<String, u64>,
    client: &str,
    until: u64,
    now: Now,
    bound: usize,
) {
    clients.insert(client.to_owned(), until);
    let over = clients.iter().filter(|(_, until)| **until <= now.ms);
    let over: BTreeSet<_> = over.map(|(client, until)| (*until, client.clone())).collect();
    for (_, client) in over.into_iter().take(bound) {
        clients.remove(&client);
    }
}

/// The queue in the order of a sorted set: by ticket, then by request.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) order: BTreeSet<(u64, RequestId)>,
    tickets: HashMap<RequestId, u64>,
}

/// How a hand-over ended.
pub(crate) enum HandOver {
    /// No queued client can be reached. If the caller takes the lock now, this is its fence.
    Nobody(u64),
    Handed,
    More,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn ticket(&self, request: &RequestId) -> Option<u64> {
        self.tickets.get(request).copied()
    }

    /// Adds a request, unless it has this place or an earlier one. Returns whether it was added.
    pub(crate) fn add(&mut self, ticket: u64, request: &RequestId) -> bool {
        if self.ticket(request).is_some_and(|place| place <= ticket) {
            return false;
        }
        self.remove(request);
        self.tickets.insert(request.clone(), ticket);
        self.order.insert((ticket, request.clone()))
    }

    pub(crate) fn remove(&mut self, request: &RequestId) {
        if let Some(ticket) = self.tickets.remove(request) {
            self.order.remove(&(ticket, request.clone()));
        }
    }

    fn pop(&mut self) -> Option<RequestId> {
        let (_, request) = self.order.pop_first()?;
        self.tickets.remove(&request);
        Some(request)
    }
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

    /// The only hold is over, and has used fences up to `last`.
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
    /// Returns the holder without the holds whose deadline is past. Also returns the client that must still
    /// be taken for dead, because it has not claimed a pushed grant. That is never the caller's client, which
    /// is awake, and never a client if `caller` is `None`. A deadline beyond now + lease means that the clock
    /// was set back; it is clamped.
    pub(crate) fn read(&mut self, now: Now, caller: Option<&str>) -> (Holder, Option<String>) {
        let mut holder = self.written.clone().unwrap_or_default();
        let unclaimed = holder.request.clone().filter(|_| holder.pushed);
        let mut dead = None;
        let mut changed = false;
        holder.holds.retain(|request, hold| {
            if hold.deadline <= now.ms {
                let is_unclaimed = unclaimed.as_ref() == Some(request);
                if is_unclaimed && caller.is_some_and(|caller| caller != request.client()) {
                    dead = Some(request.client().to_owned());
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
            self.take_for_dead(dead.take().as_deref());
        }
        (holder, dead)
    }

    pub(crate) fn take_for_dead(&mut self, client: Option<&str>) {
        if let Some(client) = client {
            self.clients.remove(client);
        }
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
        };
        self.write(holder, deadline);
    }

    /// Leaves the lock without a holder.
    pub(crate) fn free(&mut self, holder: &Holder, now: Now) {
        let nobody = Holder {
            fence: holder.last_fence(),
            ..Holder::default()
        };
        self.write(&nobody, now.ms);
    }

    /// Grants a free lock to the first request in the queue whose client can be reached, and tells that
    /// client alone. `fence` is the fence of the new owner, and `mine` is the caller's own request and its
    /// lease. A request whose client cannot be reached stays removed, and so does its client's presence
    /// record.
    #[expect(clippy::too_many_arguments)]
    pub(crate) fn hand_over(
        &mut self,
        holder: &mut Holder,
        mut fence: u64,
        dead: Option<&str>,
        mine: Option<(&RequestId, u64)>,
        prefix: &str,
        now: Now,
        bound: usize,
        channels: &mut dyn Channels,
    ) -> HandOver {
        self.take_for_dead(dead);
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
            if self.is_alive(client, now) && channels.subscribers(&channel) > 0 {
                let grant_ms = millis(request.grant());
                let push = pushed_grant(&request, fence, now, grant_ms)
                    .map(|grant| Push::Granted(vec![grant]).write());
                if push.is_some_and(|push| channels.publish(&channel, &push)) {
                    self.grant(holder, &request, fence, now, grant_ms, true);
                    return HandOver::Handed;
                }
                // No two requests are ever told the same fence.
                fence += 1;
            }
            self.clients.remove(client);
            unreachable.insert(client.to_owned());
        }
        HandOver::More
    }

    /// The lock was released but stays taken for a while. Tells the client of the first reachable request in
    /// the queue to ask for the time, and removes those before it. Returns whether the bound was reached.
    pub(crate) fn tell_first(
        &mut self,
        prefix: &str,
        now: Now,
        bound: usize,
        channels: &mut dyn Channels,
    ) -> bool {
        for _ in 0..bound {
            let Some((_, first)) = self.queue.order.first().cloned() else {
                return false;
            };
            let channel = format!("{prefix}{}", first.client());
            if self.is_alive(first.client(), now) && channels.subscribers(&channel) > 0 {
                channels.publish(&channel, &Push::Kept.write());
                return false;
            }
            self.queue.remove(&first);
            self.clients.remove(first.client());
        }
        true
    }

    fn is_alive(&self, client: &str, now: Now) -> bool {
        self.clients.get(client).is_some_and(|until| *until > now.ms)
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
fn pushed_grant(request: &RequestId, fence: u64, now: Now, grant_ms: u64) -> Option<Grant> {
    Some(Grant {
        request: request.clone(),
        fence: Fence::new(fence)?,
        deadline: ServerTime::from_ms(now.ms + grant_ms),
        pushed: true,
        slot: None,
    })
}
