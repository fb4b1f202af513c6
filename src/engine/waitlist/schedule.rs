//! What the driver of a waiting waitlist has to do next: requests to be sent anew, and the waitlist's poll.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::time::clock::LocalTime;

/// How often a waitlist asks again, at most, until the server sees its subscription.
const CONFIRMATIONS: u32 = 3;

#[derive(Debug, Default)]
pub(crate) struct Schedule {
    ask_all: bool,
    /// In the order of their numbers, however they came to be here.
    asks: BTreeSet<u64>,
    poll_due: Option<LocalTime>,
    /// Until when the driver sleeps.
    asleep_until: Option<LocalTime>,
    confirmations: u32,
    /// When last asked often enough, the server did not see the subscription.
    unseen: bool,
}

/// Whether the server sees the waitlist's subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    Seen,
    /// Not yet: it is asked again.
    Soon,
    /// It was asked often enough.
    Unseen,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    AskAll,
    Ask(BTreeSet<u64>),
    Poll,
    /// Nothing until then.
    Wait(LocalTime),
    Leave,
}

impl Schedule {
    pub(crate) fn ask(&mut self, numbers: impl IntoIterator<Item = u64>) {
        self.asks.extend(numbers);
    }

    pub(crate) fn ask_all(&mut self) {
        self.ask_all = true;
    }

    /// Puts the next poll at `due`, unless it is earlier: a busy lock would put it off for ever. Returns whether the
    /// driver would sleep past it.
    pub(crate) fn poll_by(&mut self, due: LocalTime) -> bool {
        self.poll_due = Some(self.poll_due.map_or(due, |before| due.min(before)));
        self.asleep_until.is_some_and(|until| due < until)
    }

    /// The subscription is confirmed: ask whether anything was missed, until the server sees it too.
    pub(crate) fn subscribed(&mut self, now: LocalTime) {
        self.confirmations = CONFIRMATIONS;
        self.poll_due = Some(now);
    }

    /// The subscription was made anew, with all others of the client. If it was not seen before, ask whether it is now.
    pub(crate) fn reconnected(&mut self, now: LocalTime) {
        if self.unseen {
            self.poll_by(now);
        }
    }

    /// The poll was answered, with whether the server sees the subscription. A server of a cluster drops
    /// subscriptions without a word when their slot moves; and the connection may lead to another server.
    pub(crate) fn polled(&mut self, now: LocalTime, seen: bool) -> Sight {
        if seen {
            (self.confirmations, self.unseen) = (0, false);
            return Sight::Seen;
        }
        if self.confirmations == 0 {
            self.unseen = true;
            return Sight::Unseen;
        }
        self.confirmations -= 1;
        let patience = Duration::from_millis(10) * (1 << (2 * (CONFIRMATIONS - self.confirmations)));
        self.poll_by(now.after(patience));
        Sight::Soon
    }

    /// What to do now. A poll is due after `interval` at the latest; in an empty waitlist none is, and the driver
    /// leaves at `leave_at`.
    pub(crate) fn next(&mut self, now: LocalTime, interval: Duration, leave_at: Option<LocalTime>) -> Action {
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
                // In case nothing is heard; an answer puts it earlier.
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

    /// What is to do at `ms` while somebody waits.
    fn next(schedule: &mut Schedule, ms: u64) -> Action {
        schedule.next(at(ms), INTERVAL, None)
    }

    #[test]
    fn asking_everybody_includes_those_who_were_to_ask_anyway() {
        let mut schedule = Schedule::default();
        schedule.ask([7, 3]);
        assert_eq!(next(&mut schedule, 0), Action::Ask([3, 7].into()));
        schedule.ask([7]);
        schedule.ask_all();
        assert_eq!(next(&mut schedule, 0), Action::AskAll);
        assert_eq!(next(&mut schedule, 0), Action::Wait(at(5000)));
    }

    #[test]
    fn a_question_is_only_ever_put_earlier() {
        let mut schedule = Schedule::default();
        assert_eq!(next(&mut schedule, 0), Action::Wait(at(5000)));
        assert!(schedule.poll_by(at(300)), "the driver would sleep past it");
        assert!(!schedule.poll_by(at(9000)));
        assert_eq!(next(&mut schedule, 200), Action::Wait(at(300)));
        assert_eq!(next(&mut schedule, 300), Action::Poll);
        assert_eq!(next(&mut schedule, 300), Action::Wait(at(5300)));
    }

    #[test]
    fn an_empty_room_has_no_question_and_is_left_when_its_time_is_over() {
        let mut schedule = Schedule::default();
        schedule.poll_by(at(300));
        assert_eq!(
            schedule.next(at(400), INTERVAL, Some(at(1000))),
            Action::Wait(at(1000))
        );
        assert_eq!(schedule.next(at(1000), INTERVAL, Some(at(1000))), Action::Leave);
        assert_eq!(next(&mut schedule, 1000), Action::Wait(at(6000)));
    }

    #[test]
    fn a_new_subscription_is_asked_about_four_times_or_until_it_is_seen() {
        let mut schedule = Schedule::default();
        schedule.subscribed(at(0));
        let mut now = 0;
        for pause in [40, 160, 640] {
            assert_eq!(next(&mut schedule, now), Action::Poll);
            assert_eq!(schedule.polled(at(now), false), Sight::Soon);
            now += pause;
            assert_eq!(next(&mut schedule, now - 1), Action::Wait(at(now)));
        }
        assert_eq!(next(&mut schedule, now), Action::Poll);
        assert_eq!(schedule.polled(at(now), false), Sight::Unseen);
        assert_eq!(next(&mut schedule, now), Action::Wait(at(now + 5000)));

        schedule.subscribed(at(now));
        assert_eq!(next(&mut schedule, now), Action::Poll);
        assert_eq!(schedule.polled(at(now), true), Sight::Seen);
        assert_eq!(next(&mut schedule, now), Action::Wait(at(now + 5000)));
        // It was there, and is not any more.
        assert_eq!(schedule.polled(at(now), false), Sight::Unseen);
    }

    #[test]
    fn after_a_reconnect_a_question_is_due_where_the_subscription_was_not_seen() {
        let mut schedule = Schedule::default();
        schedule.reconnected(at(0));
        assert_eq!(next(&mut schedule, 0), Action::Wait(at(5000)));
        assert_eq!(schedule.polled(at(0), false), Sight::Unseen);
        schedule.reconnected(at(10));
        assert_eq!(next(&mut schedule, 10), Action::Poll);
        assert_eq!(schedule.polled(at(10), true), Sight::Seen);
        schedule.reconnected(at(20));
        assert_eq!(next(&mut schedule, 20), Action::Wait(at(5010)));
    }
}
