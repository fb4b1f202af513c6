//! What must be true of every history.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::history::{Belief, Effect, Event, Fault, Op, Way};
use super::liveness;
use super::order;
use super::plan::{MAX_TURNS, Plan};
use super::timing::ROUNDING;
use crate::protocol::ids::RequestId;
use crate::protocol::{RESERVED, ReleaseOutcome, ReleaseWhat};
use crate::types::permits::{Gives, Permits};
use crate::{Error, Fence};

/// Describes all violations of the promises in a history.
pub(super) fn violations(
    events: &[(Duration, Event)],
    plan: &Plan,
    key_of: impl Fn(usize) -> String,
) -> Vec<String> {
    let faultless = plan.is_faultless();
    let facts = Facts::gather(events, plan);
    let mut wrong = Vec::new();
    exclusion(events, &facts, &key_of, &mut wrong);
    fences(events, &facts, plan, &key_of, &mut wrong);
    fences_of_permits(events, plan, &key_of, &mut wrong);
    releases(events, &facts, &key_of, &mut wrong);
    kept(events, &facts, &mut wrong);
    ends(events, &facts, plan, &mut wrong);
    order::of_local_queues(events, &mut wrong);
    if faultless {
        order::of_queue(events, &facts, &key_of, &mut wrong);
        order::places(events, &mut wrong);
    }
    wrong.extend(liveness::delays(events, plan, &key_of));
    wrong
}

/// What the checks look up by call or by fence.
#[derive(Default)]
pub(super) struct Facts<'a> {
    beliefs: BTreeMap<Op, &'a Belief>,
    asked: BTreeMap<Op, (usize, Way)>,
    permits: BTreeMap<Op, Permits>,
    /// Holds that were released by force or lost by the server, by the fences of their first turns. Their
    /// holders are promised nothing more.
    revoked: BTreeSet<(&'a str, Fence)>,
    /// How many holds under a fence were released.
    released: BTreeMap<(&'a str, Fence), usize>,
    closed: bool,
    died: BTreeSet<usize>,
    /// How many turns a hold may have.
    turns: u64,
}

impl<'a> Facts<'a> {
    fn gather(events: &'a [(Duration, Event)], plan: &Plan) -> Facts<'a> {
        let mut facts = Facts {
            turns: match plan.options.retain {
                Some(_) => RESERVED,
                None => MAX_TURNS.into(),
            },
            ..Facts::default()
        };
        for (_, event) in events {
            match event {
                Event::Called {
                    op,
                    client,
                    permits,
                    way,
                    ..
                } => {
                    facts.asked.insert(*op, (*client, *way));
                    facts.permits.insert(*op, *permits);
                }
                Event::Acquired(belief) => {
                    facts.beliefs.insert(belief.op, belief);
                }
                Event::Revoked { key, fence } => {
                    facts.revoked.insert((key, *fence));
                }
                Event::Executed {
                    effect: Effect::Release(call, reply),
                    ..
                } => {
                    let found = matches!(reply.outcome, ReleaseOutcome::Released | ReleaseOutcome::OneFewer);
                    if let (
                        true,
                        ReleaseWhat::Grant(fence)
                        | ReleaseWhat::Turns { last: fence, .. }
                        | ReleaseWhat::Keep { fence, .. },
                    ) = (found, call.what)
                    {
                        *facts.released.entry((&call.keys.lock, fence)).or_default() += 1;
                    }
                }
                Event::Fault {
                    fault: Fault::Closed, ..
                } => facts.closed = true,
                Event::Died { client } => {
                    facts.died.insert(*client);
                }
                _ => {}
            }
        }
        facts
    }

    pub(super) fn is_revoked(&self, key: &str, fence: Fence) -> bool {
        let earliest = Fence::new((fence.get() + 1).saturating_sub(self.turns).max(1)).expect("not 0");
        self.revoked
            .range((key, earliest)..=(key, fence))
            .next()
            .is_some()
    }

    /// Whether the turn with this fence was passed on inside its process: a later one has the same hold.
    fn is_passed_on(&self, turn: &Belief) -> bool {
        let mut later = self.beliefs.values();
        later.any(|later| {
            let same = (later.lock, &later.owner) == (turn.lock, &turn.owner);
            same && later.fence > turn.fence
        })
    }
}

/// Checks that no two owners believe at the same time that they hold a lock, that no guard of permits exists
/// beside too many others, and that an owner which begins to believe so holds the lock on the server.
///
/// When a guard of permits was granted, all earlier guards that still exist were in use beside it. With
/// them, it keeps to its own capacity. Later ones may have larger capacities.
fn exclusion(
    events: &[(Duration, Event)],
    facts: &Facts<'_>,
    key_of: &impl Fn(usize) -> String,
    wrong: &mut Vec<String>,
) {
    let mut downgraded = BTreeSet::new();
    for (at, event) in events {
        let belief = match event {
            Event::Acquired(belief) => belief,
            Event::Downgrades { op } => {
                downgraded.insert(op);
                continue;
            }
            Event::Downgraded {
                op,
                result: Ok(()),
                left: Some(2..),
            } => {
                wrong.push(format!("{at:?}: call {op} is still a writer's on the server"));
                continue;
            }
            _ => continue,
        };
        let key = key_of(belief.lock);
        if belief.late || facts.is_revoked(&key, belief.fence) {
            continue;
        }
        if !belief.real {
            wrong.push(format!("{at:?}: no hold on the server: {belief:?}"));
        }
        let others = belief.beside.iter().filter(|(_, owner, fence)| {
            // The turns of a tenure have one owner, but each has a fence of its own.
            (owner, fence) != (&belief.owner, &belief.fence) && !facts.is_revoked(&key, *fence)
        });
        let mut guards: Vec<(Fence, Op)> = others.map(|(op, _, fence)| (*fence, *op)).collect();
        guards.push((belief.fence, belief.op));
        guards.sort_unstable();
        let mut used = 0;
        for (fence, op) in guards {
            let Permits { weight, capacity } = facts.permits[&op];
            used += if downgraded.contains(&op) { 1 } else { weight };
            if fence >= belief.fence && used > capacity {
                wrong.push(format!(
                    "{at:?}: two holders at once, or {used} permits of {capacity}: call {op} at {belief:?}"
                ));
            }
        }
    }
}

/// Checks that the fences of permits increase from one grant to the next, on the server. Guards of several
/// grants can be made in any order.
fn fences_of_permits<'a>(
    events: &'a [(Duration, Event)],
    plan: &Plan,
    key_of: &impl Fn(usize) -> String,
    wrong: &mut Vec<String>,
) {
    let kinds = (0..plan.locks).filter(|lock| plan.gives[*lock] != Gives::Itself);
    // By key.
    let mut last_fences: BTreeMap<String, u64> = kinds.map(|lock| (key_of(lock), 0)).collect();
    let mut granted: BTreeSet<(&RequestId, u64)> = BTreeSet::new();
    for (at, event) in events {
        let Event::Holds { key, holds, .. } = event else {
            continue;
        };
        let Some(last) = last_fences.get_mut(key) else {
            continue;
        };
        let fenced = holds.iter().map(|(request, (_, hold))| (hold.fence, request));
        let is_new = |(fence, request): &(u64, &'a RequestId)| {
            !request.is_kept() && granted.insert((*request, *fence))
        };
        let new: BTreeSet<_> = fenced.filter(is_new).collect();
        for (fence, request) in new {
            if fence <= *last {
                wrong.push(format!(
                    "{at:?}: fence {fence} of {request} not larger than {last}"
                ));
            }
            *last = fence;
        }
    }
}

/// Checks that fences increase, and that only the holds of one owner share a fence.
fn fences(
    events: &[(Duration, Event)],
    facts: &Facts<'_>,
    plan: &Plan,
    key_of: &impl Fn(usize) -> String,
    wrong: &mut Vec<String>,
) {
    let mut last: BTreeMap<usize, &Belief> = BTreeMap::new();
    for (at, event) in events {
        let Event::Acquired(belief) = event else { continue };
        let is_permits = plan.gives[belief.lock] != Gives::Itself;
        if is_permits || belief.late || facts.is_revoked(&key_of(belief.lock), belief.fence) {
            continue;
        }
        if let Some(before) = last.insert(belief.lock, belief) {
            let same = before.fence == belief.fence && before.owner == belief.owner;
            if !same && before.fence >= belief.fence {
                wrong.push(format!("{at:?}: fence not larger: {belief:?} after {before:?}"));
            }
        }
    }
}

/// Checks that each release that reported success did release.
fn releases(
    events: &[(Duration, Event)],
    facts: &Facts<'_>,
    key_of: &impl Fn(usize) -> String,
    wrong: &mut Vec<String>,
) {
    let mut believed = BTreeMap::new();
    let mut confirmed: BTreeMap<(String, Fence), usize> = BTreeMap::new();
    for (at, event) in events {
        match event {
            Event::Ended {
                op, believed: was, ..
            } => {
                believed.insert(*op, *was);
            }
            Event::Released { op, result: Ok(()) } => {
                let belief = facts.beliefs[op];
                if !believed[op] {
                    wrong.push(format!("{at:?}: a lost lease was released: {belief:?}"));
                }
                // What is retained is released later, or ends with its lease.
                let is_retaining =
                    RequestId::from_wire(belief.owner.as_str()).is_some_and(|request| request.is_retaining());
                if !is_retaining && !facts.is_passed_on(belief) {
                    *confirmed.entry((key_of(belief.lock), belief.fence)).or_default() += 1;
                }
            }
            _ => {}
        }
    }
    for ((key, fence), count) in confirmed {
        let really = facts.released.get(&(&*key, fence)).copied().unwrap_or_default();
        if count > really && !facts.is_revoked(&key, fence) {
            wrong.push(format!(
                "{key} {fence}: {count} releases confirmed, {really} done"
            ));
        }
    }
}

/// Checks that a lock that was released, and is to stay taken for a while, does so until then.
fn kept(events: &[(Duration, Event)], facts: &Facts<'_>, wrong: &mut Vec<String>) {
    // By lock, and the request that keeps it taken: its fence, and until when.
    let mut kept: BTreeMap<&str, BTreeMap<RequestId, (Fence, Option<Duration>)>> = BTreeMap::new();
    for (at, event) in events {
        match event {
            Event::Executed {
                effect: Effect::Release(call, reply),
                ..
            } => {
                if let (ReleaseWhat::Keep { fence, .. }, ReleaseOutcome::Released) =
                    (call.what, reply.outcome)
                {
                    let key = &*call.keys.lock;
                    let of_lock = kept.entry(key).or_default();
                    of_lock.entry(call.request.kept()).or_insert((fence, None));
                }
            }
            Event::Holds { key, holds, .. } => {
                let Some(of_lock) = kept.get_mut(&**key) else {
                    continue;
                };
                of_lock.retain(|request, (fence, until)| {
                    let hold = holds.get(request);
                    let ended = until.filter(|until| hold.is_none() && *at + ROUNDING < *until);
                    if let Some(until) = ended.filter(|_| !facts.is_revoked(key, *fence)) {
                        wrong.push(format!("{at:?}: {request} did not keep {key} until {until:?}"));
                    }
                    *until = hold.map(|(until, _)| *until);
                    hold.is_some()
                });
            }
            _ => {}
        }
    }
}

/// Checks that every call ended, and in a way that is documented for it.
fn ends(events: &[(Duration, Event)], facts: &Facts<'_>, plan: &Plan, wrong: &mut Vec<String>) {
    let faultless = plan.is_faultless();
    // An answer may take longer than the caller waits.
    let is_short = |wait| wait < 2 * plan.latency + ROUNDING;
    let mut open: BTreeSet<Op> = facts.asked.keys().copied().collect();
    open.retain(|op| !facts.died.contains(&facts.asked[op].0));
    for (at, event) in events {
        match event {
            Event::Acquired(Belief { op, .. })
            | Event::Busy { op }
            | Event::Cancelled { op }
            | Event::Forced { op, .. } => {
                open.remove(op);
            }
            Event::Failed { op, error } => {
                open.remove(op);
                let documented = match error {
                    Error::Timeout { .. } => matches!(facts.asked[op].1, Way::Within(_)),
                    Error::Unavailable(_) => {
                        !faultless || matches!(facts.asked[op].1, Way::Within(wait) if is_short(wait))
                    }
                    Error::Closed => facts.closed,
                    _ => false,
                };
                if !documented {
                    wrong.push(format!("{at:?}: call {op} {:?} failed: {error}", facts.asked[op]));
                }
            }
            Event::Released {
                op,
                result: Err(error),
            }
            | Event::Downgraded {
                op,
                result: Err(error),
                ..
            } => {
                let documented = match error {
                    Error::Lost(_) => true,
                    Error::Unavailable(_) => !faultless,
                    Error::Closed => facts.closed,
                    _ => false,
                };
                if !documented {
                    wrong.push(format!(
                        "{at:?}: the end or the downgrade of call {op} failed: {error}"
                    ));
                }
            }
            _ => {}
        }
    }
    if !open.is_empty() {
        wrong.push(format!("starved: calls {open:?}"));
    }
}
