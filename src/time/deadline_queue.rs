//! Selects the next of the calls that wait for something scarce, and may be given up before they get it.
//!
//! The order is first in, first out, as long as all can be served in time. Under overload, that order serves
//! only those that are about to be given up, and in the end none. So a call is passed over if it is given up
//! sooner than it can be served. If none is expected to be served in time, the one with the most time left is
//! tried. (Maurer, "Fail at Scale", 2015, reverses the queue for the same reason.)

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::clock::LocalTime;

/// When a caller gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivesUp {
    /// The caller set a bound.
    At(LocalTime),
    Unknown,
}

impl GivesUp {
    /// The bound of the caller, if it set one.
    pub(crate) fn bound(self) -> Option<LocalTime> {
        match self {
            GivesUp::At(time) => Some(time),
            GivesUp::Unknown => None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct DeadlineQueue<T> {
    /// By number, which is the order of their arrival.
    waiting: BTreeMap<u64, (GivesUp, T)>,
    /// Those that were passed over, by their bounds.
    passed_over: BTreeMap<(LocalTime, u64), T>,
}

impl<T> Default for DeadlineQueue<T> {
    fn default() -> DeadlineQueue<T> {
        DeadlineQueue {
            waiting: BTreeMap::new(),
            passed_over: BTreeMap::new(),
        }
    }
}

impl<T> DeadlineQueue<T> {
    pub(crate) fn push(&mut self, number: u64, gives_up: GivesUp, item: T) {
        self.waiting.insert(number, (gives_up, item));
    }

    /// Removes one that no longer waits. It was pushed with these arguments.
    pub(crate) fn remove(&mut self, number: u64, gives_up: GivesUp) -> Option<T> {
        if let Some((_, item)) = self.waiting.remove(&number) {
            return Some(item);
        }
        self.passed_over.remove(&(gives_up.bound()?, number))
    }

    /// Removes and returns the next one, if serving it takes this long.
    pub(crate) fn next(&mut self, now: LocalTime, service: Duration) -> Option<T> {
        while let Some((number, (gives_up, item))) = self.waiting.pop_first() {
            match gives_up {
                GivesUp::At(time) if time.since(now) <= service => {
                    self.passed_over.insert((time, number), item);
                }
                _ => return Some(item),
            }
        }
        let last = self.passed_over.last_entry()?;
        // One whose bound is over is about to leave.
        (now < last.key().0).then(|| last.remove())
    }

    /// Removes and returns one that was passed over and whose bound has passed.
    pub(crate) fn expired(&mut self, now: LocalTime) -> Option<T> {
        let first = self.passed_over.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.passed_over.len()
    }

    pub(crate) fn into_items(self) -> impl Iterator<Item = T> {
        let waiting = self.waiting.into_values().map(|(_, item)| item);
        waiting.chain(self.passed_over.into_values())
    }
}

#[cfg(test)]
mod tests {
    use super::GivesUp::{At, Unknown};
    use super::*;

    const SERVICE: Duration = Duration::from_millis(10);

    fn at(ms: u64) -> LocalTime {
        LocalTime::ZERO.after(Duration::from_millis(ms))
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
        let mut queue = queue(&[At(at(100)), Unknown, At(at(11))]);
        assert_eq!(queue.len(), 3);
        assert_eq!(served(&mut queue, 0), [0, 1, 2]);
        assert!(queue.is_empty());
    }

    #[test]
    fn callers_giving_up_too_soon_are_last_with_most_time_first() {
        let mut queue = queue(&[At(at(5)), At(at(10)), At(at(11)), Unknown]);
        assert_eq!(served(&mut queue, 0), [2, 3, 1, 0]);
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
        let callers = [At(at(5)), At(at(100)), Unknown, At(at(7))];
        let mut queue = queue(&callers);
        assert_eq!(queue.next(at(0), SERVICE), Some(1));
        for (left, number, gives_up) in [(2, 0, callers[0]), (1, 2, callers[2])] {
            assert_eq!(queue.remove(number, gives_up).map(|_| queue.len()), Some(left));
            assert_eq!(queue.remove(number, gives_up), None);
        }
        assert_eq!(queue.into_items().collect::<Vec<_>>(), [3]);
    }
}
