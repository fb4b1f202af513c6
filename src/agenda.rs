//! What the attendant of a waiting room has to do next: requests to be sent anew, and the room's question.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Tick;

/// How often a room asks, at most, until the server sees its subscription.
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
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Todo {
    Ask(Vec<u64>),
    Question(u64),
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

    /// Puts the next question at `due`, unless it is earlier. Returns whether the attendant would sleep past it.
    pub(crate) fn question_by(&mut self, due: Tick) -> bool {
        self.question_due = Some(self.question_due.map_or(due, |before| due.min(before)));
        self.asleep_until.is_some_and(|until| due < until)
    }

    /// The subscription is confirmed: ask whether anything was missed, until the server sees it too.
    pub(crate) fn subscribed(&mut self, now: Tick) {
        self.confirmations = CONFIRMATIONS;
        self.question_due = Some(now);
    }

    /// The question was answered, with whether the server sees the subscription.
    pub(crate) fn questioned(&mut self, now: Tick, seen: bool) {
        if seen {
            self.confirmations = 0;
        } else if self.confirmations > 0 {
            self.confirmations -= 1;
            let patience = Duration::from_millis(10) * (1 << (2 * (CONFIRMATIONS - self.confirmations)));
            self.question_by(now.after(patience));
        }
    }

    /// What to do now, for the waiters of these numbers. Without any, the attendant leaves at `leave_at`; with some, a
    /// question is due after `interval` at the latest.
    pub(crate) fn next(
        &mut self,
        now: Tick,
        mut waiters: impl Iterator<Item = u64>,
        interval: Duration,
        leave_at: Tick,
    ) -> Todo {
        if std::mem::take(&mut self.ask_all) {
            self.asks.clear();
            return Todo::Ask(waiters.collect());
        }
        if !self.asks.is_empty() {
            return Todo::Ask(std::mem::take(&mut self.asks).into_iter().collect());
        }
        let next = match waiters.next() {
            None if now >= leave_at => return Todo::Leave,
            None => {
                self.question_due = None;
                leave_at
            }
            Some(first) => {
                let due = *self.question_due.get_or_insert(now.after(interval));
                if due <= now {
                    // In case nothing is heard; an answer puts it earlier.
                    self.question_due = Some(now.after(interval));
                    return Todo::Question(first);
                }
                due
            }
        };
        self.asleep_until = Some(next);
        Todo::Wait(next)
    }
}
