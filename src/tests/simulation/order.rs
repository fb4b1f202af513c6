//! Checks of the order in which calls get a lock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::history::{Belief, Effect, Event, Op, Way};
use super::invariants::Facts;
use crate::Fence;
use crate::protocol::Acquired;
use crate::protocol::ids::RequestId;

/// Checks that a request keeps its place in the queue, whatever other leases expire, if the server had the
/// subscription of its client before the request took the place.
pub(super) fn places(events: &[(Duration, Event)], wrong: &mut Vec<String>) {
    let mut listening: BTreeSet<(usize, &str)> = BTreeSet::new();
    let mut sure: BTreeSet<&RequestId> = BTreeSet::new();
    for (at, event) in events {
        let (client, call, contended) = match event {
            Event::Executed {
                client,
                effect: Effect::Acquire(call, Acquired::Contended(contended)),
            } => (client, call, contended),
            Event::Listens { client, key } => {
                listening.insert((*client, key));
                continue;
            }
            _ => continue,
        };
        if contended.enqueued && sure.contains(&call.request) {
            wrong.push(format!("{at:?}: a request lost its place: {call:?}"));
        }
        let listens = listening.contains(&(*client, &*call.keys.lock));
        if contended.enqueued && listens && call.ticket.is_none() {
            sure.insert(&call.request);
        }
    }
}

/// Checks that the calls in the local queue of a client have their turns in the order in which they came,
/// whatever happens to the tenures.
pub(super) fn of_local_queues(events: &[(Duration, Event)], wrong: &mut Vec<String>) {
    // By client and lock.
    let mut queues: BTreeMap<(usize, usize), BTreeSet<Op>> = BTreeMap::new();
    let mut places: BTreeMap<Op, (usize, usize)> = BTreeMap::new();
    for (at, event) in events {
        let op = match event {
            Event::Called {
                op,
                client,
                lock,
                way,
                queues_locally,
                ..
            } if *queues_locally && *way != Way::Try => {
                places.insert(*op, (*client, *lock));
                queues.entry((*client, *lock)).or_default().insert(*op);
                continue;
            }
            Event::Acquired(Belief { op, .. }) | Event::Cancelled { op } | Event::Failed { op, .. } => *op,
            _ => continue,
        };
        let Some(queue) = places.get(&op).and_then(|place| queues.get_mut(place)) else {
            continue;
        };
        // A turn whose guard was made after it was lost does not hold up the next tenure.
        let in_time = matches!(event, Event::Acquired(belief) if !belief.late);
        if let Some(before) = queue.first().filter(|before| in_time && **before < op) {
            wrong.push(format!(
                "{at:?}: call {before} was overtaken by call {op} of its own client"
            ));
        }
        queue.remove(&op);
    }
}

/// Checks that requests get the lock in the order of the queue, if their clients were reachable at their
/// turn.
pub(super) fn of_queue(
    events: &[(Duration, Event)],
    facts: &Facts<'_>,
    key_of: &impl Fn(usize) -> String,
    wrong: &mut Vec<String>,
) {
    let mut tickets: BTreeMap<&RequestId, u64> = BTreeMap::new();
    // By lock: the last ticket.
    let mut latest: BTreeMap<&str, u64> = BTreeMap::new();
    // A request that queues again has missed its turn: its hold or another hold of its client expired, or the
    // client was not subscribed yet.
    let mut came_back: BTreeSet<&RequestId> = BTreeSet::new();
    for (_, event) in events {
        let Event::Executed {
            effect: Effect::Acquire(call, reply),
            ..
        } = event
        else {
            continue;
        };
        match reply {
            Acquired::Contended(contended) if contended.enqueued => {
                let ticket = contended.ticket.map_or(0, |ticket| ticket.0);
                let last = latest.entry(&call.keys.lock).or_default();
                *last = ticket.max(*last);
                if call.ticket.is_some() || tickets.insert(&call.request, ticket).is_some() {
                    came_back.insert(&call.request);
                }
            }
            // A request that was not queued comes behind all that are.
            Acquired::Granted { .. } if call.ticket.is_none() && !tickets.contains_key(&call.request) => {
                let last = latest.get(&*call.keys.lock).copied();
                tickets.insert(&call.request, last.map_or(0, |last| last + 1));
            }
            Acquired::Granted { grant, was_queued } if !grant.pushed && !was_queued => {
                came_back.insert(&call.request);
            }
            _ => {}
        }
    }
    let ticket_of = |belief: &Belief| {
        let request = RequestId::from_wire(belief.owner.as_str())?;
        let ticket = tickets.get(&request).copied();
        ticket.filter(|_| !came_back.contains(&request))
    };
    // In the order of the grants. The guards of several permits can be made in another one.
    let mut granted: BTreeMap<(usize, Fence), (u64, &Belief)> = BTreeMap::new();
    for (_, event) in events {
        let Event::Acquired(belief) = event else { continue };
        let Some(ticket) = ticket_of(belief) else { continue };
        if !belief.late && !facts.is_revoked(&key_of(belief.lock), belief.fence) {
            granted.insert((belief.lock, belief.fence), (ticket, belief));
        }
    }
    // By lock and capacity: the last grant. A request may be overtaken by one with a larger capacity.
    let mut last: BTreeMap<(usize, u32), (u64, &Belief)> = BTreeMap::new();
    for ((lock, _), (ticket, belief)) in granted {
        let capacity = RequestId::from_wire(belief.owner.as_str()).map_or(1, |request| request.capacity());
        let before = last.range((lock, 0)..=(lock, capacity));
        for (_, (_, other)) in before.filter(|(_, (before, _))| *before > ticket) {
            wrong.push(format!("overtaken: {belief:?} by {other:?}"));
        }
        last.insert((lock, capacity), (ticket, belief));
    }
}
