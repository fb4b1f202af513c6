//! The permits of one semaphore or read/write lock as a server keeps them, and the parts that operations
//! share.
//!
//! A request takes `weight` permits, and may hold while, with them, at most `capacity` are in use. Both
//! numbers stand in the request, so no capacity is stored about which two callers could disagree. A reader
//! takes one of [`MOST_PERMITS`](crate::types::permits::MOST_PERMITS), and a writer all of them.

mod hand_over;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::lock::{Now, Queue, RETENTION_MS};
use crate::protocol::ids::RequestId;
use crate::protocol::interface::Grant;
use crate::protocol::keys::Keys;
use crate::time::server_time::ServerTime;
use crate::types::fence::Fence;
use crate::types::permits::MOST_SLOTS;

/// What a renewal writes as [`Permits::seen`] if the clock was set back. It is later than any time.
pub(crate) const STALE: u64 = 9_999_999_999_999;

/// All permits under one name: their holds, the queue, and the clients' presence records.
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
    /// Client → server time (ms) until which the client counts as alive.
    pub(crate) clients: HashMap<String, u64>,
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

    pub(crate) fn is_alive(&self, client: &str, now: Now) -> bool {
        self.clients.get(client).is_some_and(|until| *until > now.ms)
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
    /// The caller's client is awake. It keeps its presence record if it did not claim a grant. A call that
    /// only reads has no caller, and takes no client for dead.
    caller: Option<&'a str>,
    /// How many permits were in use before the call.
    used_before: u32,
    /// Some holds that are over may still be there, because the bound was reached.
    unsettled: bool,
}

impl<'a> OpenPermits<'a> {
    /// Drops the holds that are over.
    pub(crate) fn new(
        permits: &'a mut Permits,
        keys: &'a Keys,
        now: Now,
        bound: usize,
        caller: Option<&'a str>,
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
    }

    /// Drops the holds that are over, in the order of their ends. If `is_exact`, also corrects the first
    /// timer that is left. Looks at no more timers than the bound. Returns the first timer, or 0. A client
    /// that did not claim its grant is dead or asleep, and loses its presence record.
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
                    if hold.pushed && self.caller.is_some_and(|caller| caller != request.client()) {
                        self.permits.clients.remove(request.client());
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
