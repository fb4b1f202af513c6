//! The driver of a waitlist: its task. It subscribes, and polls for what no push reports. It stays for a
//! while after the last waiter has left, so that a busy lock does not subscribe again and again.
//!
//! When the subscription is confirmed, the driver polls at once, because a turn may have come and gone
//! before.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};

use crate::engine::options::{IDLE_LIMIT, MAX_IDLE_WAITLISTS};
use crate::engine::retry::RetryBudget;
use crate::engine::waitlist::Answered;
use crate::engine::waitlist::registry::Waitlists;
use crate::engine::waitlist::schedule::Action;
use crate::engine::waitlist::{Progress, Waitlist};
use crate::protocol::Failure;
use crate::time::backoff::Backoff;
use crate::time::clock::LocalTime;

/// Drives a waitlist until it has been empty for long enough, or its client is closed.
pub(in crate::engine) async fn drive(waitlists: Arc<Waitlists>, waitlist: Arc<Waitlist>) {
    let client = Arc::clone(waitlists.client());
    let mut budget = RetryBudget::new(&client);
    let mut backoff = Backoff::new();
    let mut subscription = Subscription::Due(LocalTime::ZERO);
    loop {
        let is_wanted = !waitlist.is_empty() || waitlist.heard.is_used();
        if matches!(subscription, Subscription::Due(at) if client.now() >= at && is_wanted) {
            subscription = Subscription::Requested(client.store.subscribe(Arc::clone(&waitlist.channel)));
        }
        // Checked before the schedule. A waitlist that cannot be reached misses its turns, so its schedule
        // always has a request to ask for.
        if let Some(answer) = subscription.answer().now_or_never() {
            subscription = subscription_after(answer, &waitlist, client.now(), &mut backoff);
        }
        let idle_limit = if client.is_closed() || waitlists.len() > MAX_IDLE_WAITLISTS {
            Duration::ZERO
        } else {
            IDLE_LIMIT
        };
        let done = match waitlist.todo(idle_limit) {
            Action::AskAll => ask(&waitlist, waitlist.numbers()).await,
            Action::Ask(numbers) => ask(&waitlist, numbers).await,
            Action::Poll => poll(&waitlist).await,
            Action::Wait(until) => {
                let until = match &subscription {
                    Subscription::Due(at) if is_wanted => until.min(*at),
                    _ => until,
                };
                tokio::select! {
                    biased;
                    // Until the subscription is confirmed, the waitlist depends on its polls.
                    answer = subscription.answer() => {
                        subscription = subscription_after(answer, &waitlist, client.now(), &mut backoff);
                    }
                    () = waitlist.call.notified() => {}
                    () = client.clock.sleep_until(until) => {}
                }
                budget.reset();
                continue;
            }
            Action::Leave if waitlists.remove(&waitlist) => return,
            Action::Leave => continue,
        };
        match done {
            Ok(()) => budget.reset(),
            Err(failure) => match budget.next_delay(failure) {
                Ok(pause) => tokio::time::sleep(pause).await,
                Err(error) => waitlist.fail_all(&error),
            },
        }
    }
}

/// The state of the subscription to the waitlist's channel.
enum Subscription {
    /// To be requested at this time.
    Due(LocalTime),
    Requested(Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>),
    Up,
}

impl Subscription {
    /// Waits for the answer to the request for a subscription. Never returns if there is no such request.
    async fn answer(&mut self) -> Result<(), Failure> {
        match self {
            Subscription::Requested(answer) => answer.await,
            Subscription::Due(_) | Subscription::Up => std::future::pending().await,
        }
    }
}

/// The state of the subscription after an answer. Also reports the answer to the waitlist.
fn subscription_after(
    answer: Result<(), Failure>,
    waitlist: &Waitlist,
    now: LocalTime,
    backoff: &mut Backoff,
) -> Subscription {
    match answer {
        Ok(()) => {
            *backoff = Backoff::new();
            waitlist.subscribed();
            Subscription::Up
        }
        Err(failure) => {
            match failure {
                Failure::Closed => waitlist.fail_all(&failure.into()),
                Failure::Refused(_) => waitlist.fail_queued(&failure.into()),
                _ => {}
            }
            Subscription::Due(now.after(backoff.step()))
        }
    }
}

/// Sends the calls of these requests, in this order and all at once. Schedules the repetition of those that
/// need it. Calls that are given up count only if all of them are.
async fn ask(waitlist: &Waitlist, numbers: impl IntoIterator<Item = u64>) -> Result<(), Failure> {
    let calls = numbers.into_iter().filter_map(|number| {
        let prepared = waitlist.prepare(number, false)?;
        Some(async move { (number, waitlist.send(prepared).await) })
    });
    let mut calls: FuturesUnordered<_> = calls.collect();
    let mut outcome = if calls.is_empty() {
        Ok(())
    } else {
        Err(Failure::GivenUp)
    };
    while let Some((number, answer)) = calls.next().await {
        if must_be_repeated(&answer) {
            waitlist.ask_again(number);
        }
        outcome = match (outcome, answer.map(drop)) {
            (outcome, Err(Failure::GivenUp)) => outcome,
            (Err(Failure::GivenUp), answer) => answer,
            (outcome, answer) => outcome.and(answer),
        };
    }
    outcome
}

/// Polls for the first waiter of each capacity, to learn whether anything was missed. Schedules the
/// repetition if needed, for the waiters that are then the first: the callers of these may give up.
async fn poll(waitlist: &Waitlist) -> Result<(), Failure> {
    let polls: Vec<_> = loop {
        let firsts = waitlist.firsts();
        let polls = firsts.iter().filter_map(|number| waitlist.prepare(*number, true));
        let polls: Vec<_> = polls.map(|prepared| waitlist.send(prepared)).collect();
        if !polls.is_empty() || firsts.is_empty() {
            break polls;
        }
    };
    let answers = join_all(polls).await;
    if answers.iter().any(must_be_repeated) {
        waitlist.poll_now();
    }
    answers.into_iter().try_for_each(|answer| answer.map(drop))
}

fn must_be_repeated(answer: &Answered) -> bool {
    matches!(answer, Err(_) | Ok(Progress::Again))
}
