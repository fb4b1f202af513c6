//! The turns of rate limits.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::{ByRules, RETENTION_MS, Rules, Run};
use crate::protocol::operations::{RateAsk, RateAsked, RateLook, RateLooked};

/// A waitlist that asks later than it should by more than this is passed over until it asks again.
const GRACE: u64 = 50_000;
/// When a waitlist asks again, if the next turn belongs to another one, which is somewhat late.
const OVERDUE: u64 = 5_000;
/// When a waitlist asks again, if the first one asks later: the caller of that one may give up.
const CHECK: u64 = 250_000;
/// The longest and the shortest time after which a waitlist asks again.
const LONGEST_PAUSE: u64 = 5_000_000;
const SHORTEST_PAUSE: u64 = 1_000;
/// The number of waitlists that a call looks at.
const HEADS: usize = 16;

/// A rate limit. All times are in µs.
#[derive(Debug, Default)]
pub(crate) struct RateTurns {
    /// The time of the next turn, and of the call that wrote it.
    pub(crate) next: u64,
    pub(crate) written: u64,
    /// When the first caller of each waitlist came.
    pub(crate) queue: BTreeSet<(u64, Arc<str>)>,
    /// When each waitlist is late.
    pub(crate) due: HashMap<Arc<str>, u64>,
    pub(super) kept_until: u64,
}

/// The waitlists at the head of the queue, beside the one that asks.
struct Heads {
    /// When their first callers came, and when they are late.
    others: Vec<(u64, u64)>,
    /// Those that are late.
    late: Vec<Arc<str>>,
}

impl RateTurns {
    /// The time of the next turn. If the clock was set back since it was written, so is the turn.
    fn next_at(&self, us: u64) -> u64 {
        self.next.saturating_sub(self.written.saturating_sub(us))
    }

    fn place_of(&self, waitlist: &str) -> Option<u64> {
        let mut queue = self.queue.iter();
        let queued = queue.find(|(_, queued)| **queued == *waitlist);
        queued.map(|(came, _)| *came)
    }

    fn heads(&self, us: u64, waitlist: &str) -> Heads {
        let (mut others, mut late) = (Vec::new(), Vec::new());
        for (came, other) in self.queue.iter().take(HEADS) {
            let due = self.due.get(other).copied().unwrap_or_default();
            if **other == *waitlist {
                continue;
            } else if due < us || due > us + LONGEST_PAUSE + GRACE {
                late.push(Arc::clone(other));
            } else {
                // Callers that came at the same time have the order of their waitlists.
                others.push((came + u64::from(*waitlist < **other), due));
            }
        }
        Heads { others, late }
    }

    fn leave(&mut self, waitlist: &str) {
        self.queue.retain(|(_, queued)| &**queued != waitlist);
        self.due.remove(waitlist);
    }
}

impl ByRules for RateLook {
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> RateLooked {
        let us = run.now.us;
        let turns = rules.rates.entry(self.keys.rate.clone()).or_default();
        RateLooked {
            next: turns.next_at(us),
            us,
            waiting: (turns.queue.len() - turns.heads(us, "").late.len()) as u64,
        }
    }
}

impl ByRules for RateAsk {
    fn by_rules(&self, rules: &mut Rules, run: Run<'_>) -> RateAsked {
        let (us, rate) = (run.now.us, self.rate);
        let turns = rules.rates.entry(self.keys.rate.clone()).or_default();
        let mut next = turns.next_at(us);
        let Heads { others, late } = turns.heads(us, &self.waitlist);
        let first = others.first().copied();
        // Until it has had a turn, a waitlist keeps its place, though the caller that came then may have
        // given up.
        let place = turns.place_of(&self.waitlist).filter(|_| self.waits);
        let mut waits = Vec::new();
        let mut left = None;
        for caller in &self.callers {
            let (mut came, cost) = (us.saturating_sub(caller.age), u64::from(caller.cost));
            if let Some(place) = place.filter(|_| waits.is_empty()) {
                came = came.min(place);
            }
            let free_at = us.max((next + (cost - 1) * rate.interval).saturating_sub(rate.burst));
            if free_at > us + self.window || first.is_some_and(|(first, _)| first <= came) {
                left = Some((came, free_at));
                break;
            }
            waits.push(Duration::from_micros(free_at - us));
            next = next.max(free_at) + cost * rate.interval;
        }
        let (mut again, mut ahead) = (0, 0);
        if let Some((came, free_at)) = left {
            let before = first.filter(|(first, _)| *first <= came);
            ahead = others.iter().filter(|(other, _)| *other <= came).count() as u64;
            // Each waitlist before this one takes a turn at least, but not before the first of them asks.
            again = (free_at + ahead * rate.interval).saturating_sub(us + self.window);
            if let Some((_, due)) = before {
                let first_asks = match due - GRACE > us {
                    true => due - GRACE - us,
                    false => OVERDUE,
                };
                again = again.max(first_asks.min(CHECK));
                // Those that do not ask any more are passed over by then.
                again = again.min(due - us + ahead * GRACE);
            }
            again = again.max(SHORTEST_PAUSE);
            // A try does not ask again: the reply says when a turn can come.
            if self.waits {
                again = again.min(LONGEST_PAUSE);
            }
        }
        late.iter().for_each(|waitlist| turns.leave(waitlist));
        if self.waits {
            turns.leave(&self.waitlist);
        }
        let queued = left.filter(|_| self.waits);
        if let Some((came, _)) = queued {
            turns.queue.insert((came, Arc::clone(&self.waitlist)));
            turns.due.insert(Arc::clone(&self.waitlist), us + again + GRACE);
        }
        if queued.is_some() || !waits.is_empty() || turns.written > us {
            (turns.next, turns.written) = (next, us);
        }
        turns.kept_until = run.now.ms + next.saturating_sub(us) / 1000 + RETENTION_MS;
        RateAsked {
            waits,
            again: Duration::from_micros(again),
            ahead,
        }
    }
}
