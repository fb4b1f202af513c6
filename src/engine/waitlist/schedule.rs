//! What the driver of a waitlist must do next: send requests again, or poll.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::time::clock::LocalTime;

#[derive(Debug, Default)]
pub(super) struct Schedule {
    ask_all: bool,
    /// In the order of the request numbers, whatever the order in which they were added.
    asks: BTreeSet<u64>,
    poll_due: Option<LocalTime>,
    /// The time until which the driver sleeps.
    asleep_until: Option<LocalTime>,
}

/// What the driver does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Action {
    AskAll,
    Ask(BTreeSet<u64>),
    Poll,
    /// Nothing until this time.
    Wait(LocalTime),
    Leave,
}

impl Schedule {
    pub(super) fn ask(&mut self, numbers: impl IntoIterator<Item = u64>) {
        self.asks.extend(numbers);
    }

    pub(super) fn ask_all(&mut self) {
        self.ask_all = true;
    }

    /// Moves the next poll to `due`, unless a poll is due earlier. If a poll could move later, a busy lock
    /// would postpone it forever. Returns whether the driver would sleep past `due`.
    pub(super) fn poll_by(&mut self, due: LocalTime) -> bool {
        self.poll_due = Some(self.poll_due.map_or(due, |before| due.min(before)));
        self.asleep_until.is_some_and(|until| due < until)
    }

    /// What the driver must do now. A poll is due after `interval` at the latest. In an empty waitlist no
    /// poll is due, and the driver leaves at `leave_at`.
    pub(super) fn next(&mut self, now: LocalTime, interval: Duration, leave_at: Option<LocalTime>) -> Action {
        if std::mem::take(&mut self.ask_all) {
            self.asks.clear();
            return Action::AskAll;
        }
        if !self.asks.is_empty() {
            return Action::Ask(std::mem::take(&mut self.asks));
        }
        let next = if let Some(leave_at) = leave_at {
            self.poll_due = None;
            if leave_at <= now {
                return Action::Leave;
            }
            leave_at
        } else {
            let due = *self.poll_due.get_or_insert(now.after(interval));
            if due <= now {
                // In case no reply comes. A reply moves it earlier.
                self.poll_due = Some(now.after(interval));
                return Action::Poll;
            }
            due
        };
        self.asleep_until = Some(next);
        Action::Wait(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn at(ms: u64) -> LocalTime {
        LocalTime::ZERO.after(Duration::from_millis(ms))
    }

    /// What the driver must do at `ms` while there is a waiter.
    fn next(schedule: &mut Schedule, ms: u64) -> Action {
        schedule.next(at(ms), INTERVAL, None)
    }

    #[test]
    fn asking_all_includes_waiters_already_due_to_ask() {
        let mut schedule = Schedule::default();
        schedule.ask([7, 3]);
        assert_eq!(next(&mut schedule, 0), Action::Ask([3, 7].into()));
        schedule.ask([7]);
        schedule.ask_all();
        assert_eq!(next(&mut schedule, 0), Action::AskAll);
        assert_eq!(next(&mut schedule, 0), Action::Wait(at(5000)));
    }

    #[test]
    fn poll_is_only_ever_moved_earlier() {
        let mut schedule = Schedule::default();
        assert_eq!(next(&mut schedule, 0), Action::Wait(at(5000)));
        assert!(schedule.poll_by(at(300)), "the driver would sleep past it");
        assert!(!schedule.poll_by(at(9000)));
        assert_eq!(next(&mut schedule, 200), Action::Wait(at(300)));
        assert_eq!(next(&mut schedule, 300), Action::Poll);
        assert_eq!(next(&mut schedule, 300), Action::Wait(at(5300)));
    }

    #[test]
    fn empty_waitlist_has_no_poll_and_is_left_when_its_time_is_over() {
        let mut schedule = Schedule::default();
        schedule.poll_by(at(300));
        assert_eq!(
            schedule.next(at(400), INTERVAL, Some(at(1000))),
            Action::Wait(at(1000))
        );
        assert_eq!(schedule.next(at(1000), INTERVAL, Some(at(1000))), Action::Leave);
        assert_eq!(next(&mut schedule, 1000), Action::Wait(at(6000)));
    }
}
