//! Withdrawals: the requests that are never used again, and that the server may still know.
//!
//! They are collected per lock. While one call for a lock is under way, further requests wait until it is
//! answered, or until they fill a call of their own. So a server that is slow or unreachable receives few
//! calls, each waiting request costs little memory, and a flood of requests does not need one round trip
//! after another for each thousand of them. A request of which nothing was written needs no withdrawal.
//!
//! A call that releases or tries the lock writes those that wait before itself, unless several calls are
//! already under way.
//!
//! A withdrawal is repeated until it is answered. An entry in the queue lasts for as long as anybody uses the
//! lock. If it were left there, the server would grant it the lock once this client can be reached again, and
//! nobody would have the lock for a claim window. Only a client that is closed, or that has too many outgoing
//! messages, forgets the withdrawals of old requests. The server has nothing of these any more, if nobody
//! else uses the lock.
//!
//! This module only keeps the list. [`Background`](super::Background) makes the calls.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::Unconfirmed;
use crate::engine::client::Client;
use crate::engine::pending_calls::PendingCalls;
use crate::protocol::ids::RequestId;
use crate::protocol::keys::{Keys, LockId};
use crate::protocol::{Answer, Failure, MAX_WITHDRAWN, Withdraw, Withdrawn};
use crate::time::backoff::Backoff;
use crate::time::clock::LocalTime;
use crate::time::deadline::{NOT_AFTER, PRECISION};
use crate::time::server_time::ServerTime;

/// How long the server keeps the keys of a lock that nobody uses: RETENTION_MS of the scripts, plus 10 s.
const KEPT: Duration = Duration::from_secs(70);
/// The most calls for a lock that may be under way for a release or a try to write another one before itself.
const MOST_UNDER_WAY: usize = 16;

/// A request that is never used again.
#[derive(Debug)]
pub(super) struct Withdrawal {
    pub(super) request: RequestId,
    pub(super) calls: Arc<PendingCalls>,
    /// The server may already have something of the request. Otherwise only an unanswered call can bring it
    /// there.
    pub(super) at_once: bool,
    /// Counts the withdrawal as outstanding until it is done.
    pub(super) _unconfirmed: Unconfirmed,
}

#[derive(Debug)]
pub(super) struct Withdrawals {
    client: Arc<Client>,
    locks: HashMap<LockId, LockWithdrawals>,
    /// When the next call of each lock is due.
    schedule: BTreeSet<(LocalTime, LockId)>,
    /// Withdrawals that are done or forgotten, for the user of the list to drop.
    done: Vec<Waiting>,
}

#[derive(Debug)]
struct LockWithdrawals {
    keys: Arc<Keys>,
    /// By due time and request number.
    waiting: BTreeMap<(LocalTime, u64), Waiting>,
    /// The lock's time in `schedule`.
    due: Option<LocalTime>,
    under_way: usize,
    /// No call begins earlier. Set after a failure.
    not_before: LocalTime,
    backoff: Backoff,
}

#[derive(Debug)]
pub(super) struct Waiting {
    withdrawal: Withdrawal,
    /// The server has nothing of the request any more, unless others use the lock.
    old_at: LocalTime,
}

/// The withdrawals that one call makes.
#[derive(Debug)]
pub(super) struct Batch {
    keys: Arc<Keys>,
    withdrawals: Vec<Waiting>,
}

impl Batch {
    pub(super) fn call(&self, now: LocalTime) -> Withdraw {
        let requests = self.withdrawals.iter();
        Withdraw {
            keys: Arc::clone(&self.keys),
            requests: requests
                .map(|waiting| waiting.withdrawal.request.clone())
                .collect(),
            // The largest of them suits them all: a larger fence costs a quorum a call, and nothing else.
            floor: self
                .withdrawals
                .iter()
                .filter_map(|waiting| waiting.withdrawal.calls.next_floor(|| now))
                .max(),
        }
    }
}

impl Withdrawals {
    pub(super) fn new(client: Arc<Client>) -> Withdrawals {
        Withdrawals {
            client,
            locks: HashMap::new(),
            schedule: BTreeSet::new(),
            done: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, keys: &Arc<Keys>, withdrawal: Withdrawal) {
        let now = self.client.now();
        // A call of the request can run for `NOT_AFTER`. A hold that it makes lasts for a lease, and a queue
        // entry for as long as the server keeps the queue.
        let old_at = now.after(NOT_AFTER + withdrawal.calls.lease() + KEPT);
        let due = match withdrawal.calls.unanswered() {
            _ if withdrawal.at_once => now,
            Some(not_after) => self.local_after(keys, not_after),
            None => return self.done.push(Waiting { withdrawal, old_at }),
        };
        let lock = self.locks.entry(keys.id()).or_insert_with(|| LockWithdrawals {
            keys: Arc::clone(keys),
            waiting: BTreeMap::new(),
            due: None,
            under_way: 0,
            not_before: LocalTime::ZERO,
            backoff: Backoff::new(),
        });
        self.done.extend(lock.wait(due, Waiting { withdrawal, old_at }));
        lock.schedule(&mut self.schedule);
    }

    /// Takes out those that are done. Dropping them may wake others.
    pub(super) fn take_done(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.done)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// When the next call is due.
    pub(super) fn due(&self) -> Option<LocalTime> {
        self.schedule.first().map(|(due, _)| *due)
    }

    /// Returns the next call, if one is due. Withdrawals of old requests are left out if this `forgets` them.
    pub(super) fn next(&mut self, forgets: bool) -> Option<Batch> {
        let now = self.client.now();
        while let Some((_, id)) = self.schedule.first().filter(|(due, _)| *due <= now) {
            let batch = self.due_of(&id.clone(), forgets);
            if batch.is_some() {
                return batch;
            }
        }
        None
    }

    /// Returns the next call of a lock, if it is due.
    pub(super) fn due_of(&mut self, id: &LockId, forgets: bool) -> Option<Batch> {
        let now = self.client.now();
        let lock = self.locks.get_mut(id)?;
        if lock.due? > now {
            return None;
        }
        let batch = lock.batch(now, forgets, &mut self.done);
        self.settle(id);
        batch
    }

    /// Returns a call with those of a lock that wait for the answer to another one.
    pub(super) fn next_of(&mut self, keys: &Keys) -> Option<Batch> {
        let now = self.client.now();
        let lock = self.locks.get_mut(&keys.id())?;
        if now < lock.not_before || lock.under_way >= MOST_UNDER_WAY {
            return None;
        }
        let batch = lock.batch(now, false, &mut self.done);
        self.settle(&keys.id());
        batch
    }

    /// Handles the outcome of a call.
    pub(super) fn answered(&mut self, batch: Batch, answer: &Result<Answer<Withdrawn>, Failure>) {
        let Batch { keys, withdrawals } = batch;
        let now = self.client.now();
        let again = |withdrawal: &mut Withdrawal| match answer {
            Ok(answer) if answer.reply.more => Some(now),
            Ok(answer) if withdrawal.calls.have_run_before(answer.on) => None,
            // An unanswered call of the request can still run until its `not_after`.
            Ok(answer) => {
                let not_after = withdrawal.calls.unanswered()?;
                withdrawal.at_once = false;
                let is_over = answer.at.now > not_after;
                (!is_over).then(|| self.local_after(&keys, not_after))
            }
            Err(Failure::Refused(_) | Failure::Closed) => None,
            Err(_) => Some(now),
        };
        let withdrawals = withdrawals.into_iter().map(|mut waiting| {
            let due = again(&mut waiting.withdrawal);
            (due, waiting)
        });
        let withdrawals = Vec::from_iter(withdrawals);
        let Some(lock) = self.locks.get_mut(&keys.id()) else {
            return;
        };
        for (due, waiting) in withdrawals {
            self.done.extend(match due {
                Some(due) => lock.wait(due, waiting),
                None => Some(waiting),
            });
        }
        lock.under_way -= 1;
        match answer {
            // Several calls that fail together count as one failure.
            Err(Failure::Unknown(_) | Failure::NotExecuted(_)) if now < lock.not_before => {}
            Err(Failure::Unknown(_) | Failure::NotExecuted(_)) => {
                lock.not_before = now.after(lock.backoff.step())
            }
            _ => lock.backoff = Backoff::new(),
        }
        self.settle(&keys.id());
    }

    /// Plans the next call of a lock, or forgets the lock.
    fn settle(&mut self, id: &LockId) {
        let Some(lock) = self.locks.get_mut(id) else {
            return;
        };
        lock.schedule(&mut self.schedule);
        if lock.waiting.is_empty() && lock.under_way == 0 {
            self.locks.remove(id);
        }
    }

    /// The local time at which the server is expected to have passed `time`.
    fn local_after(&self, keys: &Keys, time: ServerTime) -> LocalTime {
        let server = self.client.store.server_of(keys);
        let left = time.since(self.client.clocks.server_time(server).unwrap_or_default());
        self.client.now().after(left + PRECISION)
    }
}

impl LockWithdrawals {
    /// Returns the earlier withdrawal of the same request, if there is one: a request that is added twice is
    /// withdrawn once.
    fn wait(&mut self, due: LocalTime, waiting: Waiting) -> Option<Waiting> {
        let place = (due, waiting.withdrawal.request.number());
        let at_once = waiting.withdrawal.at_once;
        let earlier = self.waiting.insert(place, waiting)?;
        if let Some(waiting) = self.waiting.get_mut(&place) {
            waiting.withdrawal.at_once = at_once || earlier.withdrawal.at_once;
        }
        Some(earlier)
    }

    /// A call with those that are due, if there are any.
    fn batch(&mut self, now: LocalTime, forgets: bool, done: &mut Vec<Waiting>) -> Option<Batch> {
        let withdrawals = self.take(now, forgets, done);
        if withdrawals.is_empty() {
            return None;
        }
        self.under_way += 1;
        Some(Batch {
            keys: Arc::clone(&self.keys),
            withdrawals,
        })
    }

    /// Takes out the withdrawals that are due and still needed, up to the size of one call.
    fn take(&mut self, now: LocalTime, forgets: bool, done: &mut Vec<Waiting>) -> Vec<Waiting> {
        let mut taken = Vec::new();
        while taken.len() < MAX_WITHDRAWN {
            match self.waiting.first_entry() {
                Some(first) if first.key().0 <= now => {
                    let waiting = first.remove();
                    let Withdrawal { calls, at_once, .. } = &waiting.withdrawal;
                    // By now the calls that were under way have usually been answered.
                    let is_forgotten = forgets && now >= waiting.old_at;
                    match !is_forgotten && (*at_once || calls.unanswered().is_some()) {
                        true => taken.push(waiting),
                        false => done.push(waiting),
                    }
                }
                _ => break,
            }
        }
        taken
    }

    fn schedule(&mut self, schedule: &mut BTreeSet<(LocalTime, LockId)>) {
        let needed = if self.under_way == 0 { 1 } else { MAX_WITHDRAWN };
        let last = self.waiting.keys().nth(needed - 1);
        let due = last.map(|(due, _)| self.not_before.max(*due));
        if self.due == due {
            return;
        }
        let entry = |due| (due, self.keys.id());
        if let Some(planned) = self.due {
            schedule.remove(&entry(planned));
        }
        schedule.extend(due.map(entry));
        self.due = due;
    }
}
