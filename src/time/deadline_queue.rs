//! Selects the next of the callers that wait for something scarce, and may give up before they get it.
//!
//! The order is first in, first out, as long as all callers can be served in time. Under overload, that order
//! serves only callers that are about to give up, and in the end none. So a caller is passed over if it
//! gives up sooner than it can be served. A caller that still waits after it was expected to give up is next.
//! If, as far as is known, no caller can be served in time, the caller with the most time left is tried.
//! (Maurer, "Fail at Scale", 2015, reverses the queue for the same reason.)

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::clock::LocalTime;

/// When a caller gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GivesUp {
    /// The caller set a bound.
    At(LocalTime),
    /// The bound is unknown, but most other callers gave up within this time.
    Between(LocalTime, LocalTime),
    Unknown,
}

impl GivesUp {
    /// The bound of the caller, if it set one.
    pub(crate) fn bound(self) -> Option<LocalTime> {
        match self {
            GivesUp::At(time) => Some(time),
            GivesUp::Between(..) | GivesUp::Unknown => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct DeadlineQueue<T> {
    /// The callers by number, which is the order of their arrival.
    waiting: BTreeMap<u64, (GivesUp, T)>,
    /// The callers that were passed over: those with a bound by their bound, the others by the time at which
    /// most others have given up.
    bounded: BTreeMap<(LocalTime, u64), T>,
    expected: BTreeMap<(LocalTime, u64), T>,
}

impl<T> Default for DeadlineQueue<T> {
    fn default() -> DeadlineQueue<T> {
        DeadlineQueue {
            waiting: BTreeMap::new(),
            bounded: BTreeMap::new(),
            expected: BTreeMap::new(),
        }
    }
}

impl<T> DeadlineQueue<T> {
    pub(crate) fn push(&mut self, number: u64, gives_up: GivesUp, item: T) {
        self.waiting.insert(number, (gives_up, item));
    }

    /// Removes a caller that no longer waits. It was pushed with these arguments.
    pub(crate) fn remove(&mut self, number: u64, gives_up: GivesUp) -> Option<T> {
        if let Some((_, item)) = self.waiting.remove(&number) {
            return Some(item);
        }
        match gives_up {
            GivesUp::At(time) => self.bounded.remove(&(time, number)),
            GivesUp::Between(_, latest) => self.expected.remove(&(latest, number)),
            GivesUp::Unknown => None,
        }
    }

    /// Removes and returns the next caller, if serving it takes this long.
    pub(crate) fn next(&mut self, now: LocalTime, shared: Duration) -> Option<T> {
        if let Some(first) = self.expected.first_entry() {
            if first.key().0 <= now {
                return Some(first.remove());
            }
        }
        while let Some((number, (gives_up, item))) = self.waiting.pop_first() {
            match gives_up {
                GivesUp::At(time) if time.since(now) <= shared => {
                    self.bounded.insert((time, number), item);
                }
                GivesUp::Between(soonest, latest) if now < latest && soonest.since(now) <= shared => {
                    self.expected.insert((latest, number), item);
                }
                _ => return Some(item),
            }
        }
        let most_left =
            |passed_over: &BTreeMap<(LocalTime, u64), T>| passed_over.last_key_value().map(|(key, _)| *key);
        let (bounded, expected) = (most_left(&self.bounded), most_left(&self.expected));
        match bounded {
            // A caller whose bound is over is about to leave.
            Some((time, _)) if now < time && bounded > expected => self.bounded.pop_last(),
            _ => self.expected.pop_last(),
        }
        .map(|(_, item)| item)
    }

    /// Removes and returns a caller that was passed over and whose bound is over.
    pub(crate) fn expired(&mut self, now: LocalTime) -> Option<T> {
        let first = self.bounded.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Whether the callers that are left, if any, were passed over because of their bounds.
    pub(crate) fn were_all_passed_over(&self) -> bool {
        self.waiting.is_empty() && self.expected.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.bounded.len() + self.expected.len()
    }

    pub(crate) fn into_items(self) -> impl Iterator<Item = T> {
        let waiting = self.waiting.into_values().map(|(_, item)| item);
        let passed_over = self.bounded.into_values().chain(self.expected.into_values());
        waiting.chain(passed_over)
    }
}

#[cfg(test)]
mod tests {
    use super::GivesUp::{At, Between, Unknown};
    use super::*;

    const SERVICE: Duration = Duration::from_millis(10);

    fn at(ms: u64) -> LocalTime {
        LocalTime::ZERO.after(Duration::from_millis(ms))
    }

    fn between(soonest: u64, latest: u64) -> GivesUp {
        Between(at(soonest), at(latest))
    }

    /// A queue of these callers, in the order of their arrival.
    fn queue(callers: &[GivesUp]) -> DeadlineQueue<u64> {
        let mut queue = DeadlineQueue::default();
        for (number, gives_up) in (0..).zip(callers) {
            queue.push(number, *gives_up, number);
        }
        queue
    }

    fn served(queue: &mut DeadlineQueue<u64>, now: u64) -> Vec<u64> {
        std::iter::from_fn(|| queue.next(at(now), SERVICE)).collect()
    }

    #[test]
    fn servable_callers_keep_their_order_of_arrival() {
        let mut queue = queue(&[At(at(100)), Unknown, between(11, 50), At(at(11))]);
        assert_eq!(queue.len(), 4);
        assert_eq!(served(&mut queue, 0), [0, 1, 2, 3]);
        assert!(queue.is_empty());
    }

    #[test]
    fn callers_giving_up_too_soon_are_last_with_most_time_first() {
        let mut queue = queue(&[
            At(at(5)),
            At(at(10)),
            between(2, 8),
            At(at(11)),
            between(2, 4),
            Unknown,
        ]);
        assert_eq!(served(&mut queue, 0), [3, 5, 1, 2, 0, 4]);
    }

    #[test]
    fn caller_outwaiting_the_usual_patience_is_next() {
        let mut queue = queue(&[between(2, 5), between(2, 8), At(at(100)), between(2, 6), Unknown]);
        assert_eq!(queue.next(at(0), SERVICE), Some(2));
        assert_eq!(queue.next(at(7), SERVICE), Some(0));
        assert_eq!(
            queue.next(at(7), SERVICE),
            Some(3),
            "even if it was never skipped"
        );
        assert_eq!(queue.next(at(7), SERVICE), Some(4));
        assert_eq!(queue.next(at(7), SERVICE), Some(1));
    }

    #[test]
    fn expired_callers_are_not_served() {
        let mut queue = queue(&[At(at(5)), At(at(8))]);
        assert_eq!(queue.next(at(5), SERVICE), Some(1));
        assert_eq!(queue.next(at(5), SERVICE), None);
        assert_eq!(queue.expired(at(4)), None);
        assert_eq!(queue.expired(at(5)), Some(0));
        assert!(queue.is_empty());
    }

    #[test]
    fn removed_callers_are_not_served() {
        let callers = [At(at(5)), At(at(100)), Unknown, between(2, 6), At(at(7))];
        let mut queue = queue(&callers);
        assert_eq!(queue.next(at(0), SERVICE), Some(1));
        for (left, number, gives_up) in [(4, 0, callers[0]), (3, 2, callers[2]), (2, 3, callers[3])] {
            assert_eq!(queue.len(), left);
            assert_eq!(queue.remove(number, gives_up), Some(number));
            assert_eq!(queue.remove(number, gives_up), None);
        }
        assert_eq!(queue.into_items().collect::<Vec<_>>(), [4]);
    }
}
