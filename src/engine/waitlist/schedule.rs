//! What the attendant of a waiting room has to do next: requests to be sent anew, and the room's question.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::time::clock::Tick;

/// How often a room asks again, at most, until the server sees its subscription.
const CONFIRMATIONS: u32 = 3;

#[derive(Debug, Default)]
pub(crate) struct Agenda {
    ask_all: bool,
    /// In the order of their numbers, however they came to be here.
    asks: BTreeSet<u64>,
    question_due: Option<Tick>,
    /// Until when the attendant sleeps.
    asleep_until: Option<Tick>,
    confirmations: u32,
    /// When last asked often enough, the server did not see the subscription.
    unseen: bool,
}

/// Whether the server sees the room's subscription.
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
pub(crate) enum Todo {
    AskAll,
    Ask(BTreeSet<u64>),
    Question,
    /// Nothing until then.
    Wait(Tick),
    Leave,
}

impl Agenda {
    pub(crate) fn ask(&mut self, numbers: impl IntoIterator<Item = u64>) {
        self.asks.extend(numbers);
    }

    pub(crate) fn ask_all(&mut self) {
        self.ask_all = true;
    }

    /// Puts the next question at `due`, unless it is earlier: a busy lock would put it off for ever. Returns whether the
    /// attendant would sleep past it.
    pub(crate) fn question_by(&mut self, due: Tick) -> bool {
        self.question_due = Some(self.question_due.map_or(due, |before| due.min(before)));
        self.asleep_until.is_some_and(|until| due < until)
    }

    /// The subscription is confirmed: ask whether anything was missed, until the server sees it too.
    pub(crate) fn subscribed(&mut self, now: Tick) {
        self.confirmations = CONFIRMATIONS;
        self.question_due = Some(now);
    }

    /// The subscription was made anew, with all others of the client. If it was not seen before, ask whether it is now.
    pub(crate) fn reconnected(&mut self, now: Tick) {
        if self.unseen {
            self.question_by(now);
        }
    }

    /// The question was answered, with whether the server sees the subscription. A server of a cluster drops
    /// subscriptions without a word when their slot moves; and the connection may lead to another server.
    pub(crate) fn questioned(&mut self, now: Tick, seen: bool) -> Sight {
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
        self.question_by(now.after(patience));
        Sight::Soon
    }

    /// What to do now. A question is due after `interval` at the latest; in an empty room none is, and the attendant
    /// leaves at `leave_at`.
    pub(crate) fn next(&mut self, now: Tick, interval: Duration, leave_at: Option<Tick>) -> Todo {
        if std::mem::take(&mut self.ask_all) {
            self.asks.clear();
            return Todo::AskAll;
        }
        if !self.asks.is_empty() {
            return Todo::Ask(std::mem::take(&mut self.asks));
        }
        let next = if let Some(leave_at) = leave_at {
            self.question_due = None;
            if leave_at <= now {
                return Todo::Leave;
            }
            leave_at
        } else {
            let due = *self.question_due.get_or_insert(now.after(interval));
            if due <= now {
                // In case nothing is heard; an answer puts it earlier.
                self.question_due = Some(now.after(interval));
                return Todo::Question;
            }
            due
        };
        self.asleep_until = Some(next);
        Todo::Wait(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn at(ms: u64) -> Tick {
        Tick::ZERO.after(Duration::from_millis(ms))
    }

    /// What is to do at `ms` while somebody waits.
    fn next(agenda: &mut Agenda, ms: u64) -> Todo {
        agenda.next(at(ms), INTERVAL, None)
    }

    #[test]
    fn asking_everybody_includes_those_who_were_to_ask_anyway() {
        let mut agenda = Agenda::default();
        agenda.ask([7, 3]);
        assert_eq!(next(&mut agenda, 0), Todo::Ask([3, 7].into()));
        agenda.ask([7]);
        agenda.ask_all();
        assert_eq!(next(&mut agenda, 0), Todo::AskAll);
        assert_eq!(next(&mut agenda, 0), Todo::Wait(at(5000)));
    }

    #[test]
    fn a_question_is_only_ever_put_earlier() {
        let mut agenda = Agenda::default();
        assert_eq!(next(&mut agenda, 0), Todo::Wait(at(5000)));
        assert!(agenda.question_by(at(300)), "the attendant would sleep past it");
        assert!(!agenda.question_by(at(9000)));
        assert_eq!(next(&mut agenda, 200), Todo::Wait(at(300)));
        assert_eq!(next(&mut agenda, 300), Todo::Question);
        assert_eq!(next(&mut agenda, 300), Todo::Wait(at(5300)));
    }

    #[test]
    fn an_empty_room_has_no_question_and_is_left_when_its_time_is_over() {
        let mut agenda = Agenda::default();
        agenda.question_by(at(300));
        assert_eq!(
            agenda.next(at(400), INTERVAL, Some(at(1000))),
            Todo::Wait(at(1000))
        );
        assert_eq!(agenda.next(at(1000), INTERVAL, Some(at(1000))), Todo::Leave);
        assert_eq!(next(&mut agenda, 1000), Todo::Wait(at(6000)));
    }

    #[test]
    fn a_new_subscription_is_asked_about_four_times_or_until_it_is_seen() {
        let mut agenda = Agenda::default();
        agenda.subscribed(at(0));
        let mut now = 0;
        for pause in [40, 160, 640] {
            assert_eq!(next(&mut agenda, now), Todo::Question);
            assert_eq!(agenda.questioned(at(now), false), Sight::Soon);
            now += pause;
            assert_eq!(next(&mut agenda, now - 1), Todo::Wait(at(now)));
        }
        assert_eq!(next(&mut agenda, now), Todo::Question);
        assert_eq!(agenda.questioned(at(now), false), Sight::Unseen);
        assert_eq!(next(&mut agenda, now), Todo::Wait(at(now + 5000)));

        agenda.subscribed(at(now));
        assert_eq!(next(&mut agenda, now), Todo::Question);
        assert_eq!(agenda.questioned(at(now), true), Sight::Seen);
        assert_eq!(next(&mut agenda, now), Todo::Wait(at(now + 5000)));
        // It was there, and is not any more.
        assert_eq!(agenda.questioned(at(now), false), Sight::Unseen);
    }

    #[test]
    fn after_a_reconnect_a_question_is_due_where_the_subscription_was_not_seen() {
        let mut agenda = Agenda::default();
        agenda.reconnected(at(0));
        assert_eq!(next(&mut agenda, 0), Todo::Wait(at(5000)));
        assert_eq!(agenda.questioned(at(0), false), Sight::Unseen);
        agenda.reconnected(at(10));
        assert_eq!(next(&mut agenda, 10), Todo::Question);
        assert_eq!(agenda.questioned(at(10), true), Sight::Seen);
        agenda.reconnected(at(20));
        assert_eq!(next(&mut agenda, 20), Todo::Wait(at(5010)));
    }
}
