//! What must be true of every history.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::history::{Belief, Effect, Event, Fault, Op, Way};
use super::liveness;
use super::order;
use super::plan::{MAX_TURNS, Plan};
use super::timing::ROUNDING;
use crate::store::ids::RequestId;
use crate::store::{ReleaseOutcome, ReleaseWhat};
use crate::{Error, Fence};

/// Describes all violations of the promises in a history.
pub(super) fn violations(
    events: &[(Duration, Event)],
    plan: &Plan,
    key_of: impl Fn(usize) -> String,
) -> Vec<String> {
    let faultless = plan.is_faultless();
    let facts = Facts::gather(events);
    let mut wrong = Vec::new();
    exclusion(events, &facts, &key_of, &mut wrong);
    fences(events, &facts, &key_of, &mut wrong);
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
    /// Holds that were released by force or lost by the server, by the fences of their first turns. Their
    /// holders are promised nothing more.
    revoked: BTreeSet<(&'a str, Fence)>,
    /// How many holds under a fence were released.
    released: BTreeMap<(&'a str, Fence), usize>,
    closed: bool,
    died: BTreeSet<usize>,
}

impl<'a> Facts<'a> {
    fn gather(events: &'a [(Duration, Event)]) -> Facts<'a> {
        let mut facts = Facts::default();
        for (_, event) in events {
            match event {
                Event::Called { op, client, way, .. } => {
                    facts.asked.insert(*op, (*client, *way));
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
        let may_be_first = |turn: u32| Fence::new(fence.get().checked_sub(turn.into())?);
        let mut firsts = (0..MAX_TURNS).filter_map(may_be_first);
        firsts.any(|first| self.revoked.contains(&(key, first)))
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

/// Checks that no two owners believe at the same time that they hold a lock, and that an owner which begins
/// to believe so holds the lock on the server.
fn exclusion(
    events: &[(Duration, Event)],
    facts: &Facts<'_>,
    key_of: &impl Fn(usize) -> String,
    wrong: &mut Vec<String>,
) {
    for (at, event) in events {
        let Event::Acquired(belief) = event else { continue };
        let key = key_of(belief.lock);
        if belief.late || facts.is_revoked(&key, belief.fence) {
            continue;
        }
        if !belief.real {
            wrong.push(format!("{at:?}: no hold on the server: {belief:?}"));
        }
        for (op, owner, fence) in &belief.beside {
            // The turns of a tenure have one owner, but each has a fence of its own.
            let is_other = (owner, fence) != (&belief.owner, &belief.fence);
            if is_other && !facts.is_revoked(&key, *fence) {
                wrong.push(format!(
                    "{at:?}: two holders at once: {belief:?} beside call {op}"
                ));
            }
        }
    }
}

/// Checks that fences increase, and that only the holds of one owner share a fence.
fn fences(
    events: &[(Duration, Event)],
    facts: &Facts<'_>,
    key_of: &impl Fn(usize) -> String,
    wrong: &mut Vec<String>,
) {
    let mut last: BTreeMap<usize, &Belief> = BTreeMap::new();
    for (at, event) in events {
        let Event::Acquired(belief) = event else { continue };
        if belief.late || facts.is_revoked(&key_of(belief.lock), belief.fence) {
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
                if !facts.is_passed_on(belief) {
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
    // By lock: the request that keeps it taken, its fence, and until when.
    let mut kept: BTreeMap<&str, (RequestId, Fence, Option<Duration>)> = BTreeMap::new();
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
                    kept.entry(key).or_insert((call.request.kept(), fence, None));
                }
            }
            Event::Holds { key, holds } => {
                let Some((request, fence, until)) = kept.get_mut(&**key) else {
                    continue;
                };
                match (holds.get(request), *until) {
                    (Some(deadline), _) => *until = Some(*deadline),
                    (None, Some(deadline)) if *at + ROUNDING < deadline => {
                        if !facts.is_revoked(key, *fence) {
                            wrong.push(format!("{at:?}: {request} did not keep {key} until {deadline:?}"));
                        }
                        kept.remove(&**key);
                    }
                    (None, _) => {
                        kept.remove(&**key);
                    }
                }
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
            } => {
                let documented = match error {
                    Error::Lost(_) => true,
                    Error::Unavailable(_) => !faultless,
                    Error::Closed => facts.closed,
                    _ => false,
                };
                if !documented {
                    wrong.push(format!("{at:?}: the release of call {op} failed: {error}"));
                }
            }
            _ => {}
        }
    }
    if !open.is_empty() {
        wrong.push(format!("starved: calls {open:?}"));
    }
}
