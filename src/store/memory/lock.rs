//! One lock as a server keeps it, and the parts that the operations share: what `lua/lib/` is to the scripts.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::fence::Fence;
use crate::owner::Owner;
use crate::store::ids::RequestId;
use crate::store::{Grant, Push};
use crate::time::server_time::{ServerTime, millis};

/// How many holds one owner may have.
pub(crate) const MAX_HOLDS: usize = 256;
/// How long a lock is remembered after its deadline, with its fence.
pub(crate) const RETENTION_MS: u64 = 60_000;

/// The time of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// For tickets and fences.
    pub(crate) us: u64,
    /// For deadlines.
    pub(crate) ms: u64,
}

/// Who listens where.
pub(crate) trait Channels {
    /// How many subscribers of a channel are counted. Others may hear what is published on it: those at a replica.
    fn subscribers(&self, channel: &str) -> usize;

    /// Publishes, unless the caller has no right to: returns whether it did.
    fn publish(&mut self, channel: &str, message: &str) -> bool;
}

/// One lock: its holder, its queue, and its clients' records.
#[derive(Debug, Default)]
pub(crate) struct Lock {
    /// As last written: holds whose deadline is past stay until the next write. `None` before the first holder.
    pub(crate) written: Option<Holder>,
    pub(crate) queue: Queue,
    /// Client → server time (ms) until which it counts as alive.
    pub(crate) clients: HashMap<String, u64>,
    /// When nothing of this is needed any more, in ms.
    pub(crate) kept_until: u64,
}

/// Who holds, or held last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holder {
    /// 0: there was none.
    pub(crate) fence: u64,
    /// `None` after a release: tells it from a lease that ran out.
    pub(crate) owner: Option<Owner>,
    /// By which the owner became the owner, or another hold of its when that is over.
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

/// The queue in the order of a sorted set: by ticket, then by request.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) order: BTreeSet<(u64, RequestId)>,
    tickets: HashMap<RequestId, u64>,
}

/// How a hand-over ended.
pub(crate) enum HandOver {
    /// Nobody can be reached. This is the fence of whoever takes the lock now.
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

    /// Whether it was not at this place, or one before it; if it was, it keeps its place.
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
    /// The hold that ends last, and whose it is.
    pub(crate) fn latest(&self) -> Option<(&RequestId, Hold)> {
        // Of equals the first: `max_by_key` would return the last.
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

    /// Whether a hold that is gone ran out, rather than that somebody has had the lock since or released it.
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
        })
    }
}

impl Lock {
    /// Who holds now, without the holds whose deadline is past; and the client that is still to be taken for dead, since
    /// it has not claimed what it was told of: not the caller's, which is awake, and none where no caller is given. A
    /// deadline beyond now + lease means that the clock was set back, and is clamped.
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

    /// Writes the holds of a lock that goes on being held.
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

    /// Makes `request` the only holder of a lock that is free.
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

    /// Leaves the lock with nobody.
    pub(crate) fn free(&mut self, holder: &Holder, now: Now) {
        let nobody = Holder {
            fence: holder.fence,
            ..Holder::default()
        };
        self.write(&nobody, now.ms);
    }

    /// Gives a free lock to the first in the queue who can be reached, and tells that one alone. `mine` is the
    /// caller's own request and its lease. A request that cannot be reached stays removed, with its client's record.
    #[expect(clippy::too_many_arguments)]
    pub(crate) fn hand_over(
        &mut self,
        holder: &mut Holder,
        dead: Option<&str>,
        mine: Option<(&RequestId, u64)>,
        prefix: &str,
        now: Now,
        bound: usize,
        channels: &mut dyn Channels,
    ) -> HandOver {
        self.take_for_dead(dead);
        let mut fence = next_fence(holder, now);
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
            let is_alive = self.clients.get(client).is_some_and(|until| *until > now.ms);
            if is_alive && channels.subscribers(&channel) > 0 {
                let grant_ms = millis(request.grant());
                let push = pushed_grant(&request, fence, now, grant_ms).map(|grant| Push::write(&grant));
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
}

/// The fence of the next owner: larger than the last one, also when the clock was set back.
pub(crate) fn next_fence(holder: &Holder, now: Now) -> u64 {
    now.us.max(holder.fence + 1)
}

/// The grant that a hand-over makes under this fence; `None` at the end of all fences.
fn pushed_grant(request: &RequestId, fence: u64, now: Now, grant_ms: u64) -> Option<Grant> {
    Some(Grant {
        request: request.clone(),
        fence: Fence::new(fence)?,
        deadline: ServerTime::from_ms(now.ms + grant_ms),
        pushed: true,
    })
}
