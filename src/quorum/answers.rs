//! What the servers of a quorum answered to one question.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use super::QuorumClient;
use crate::engine::acquire::Tried;
use crate::types::error::{Error, Result, ServerError};
use crate::types::fence::Fence;

/// How much longer than twice the time of the others a server may take to confirm a release on which nothing
/// depends, or to answer a try.
const STRAGGLER: Duration = Duration::from_millis(10);

/// The answers so far, and the errors of the servers that gave none.
pub(super) struct Answers<T> {
    servers: usize,
    majority: usize,
    answers: Vec<T>,
    errors: Vec<Error>,
}

impl<T> Answers<T> {
    pub(super) fn of(quorum: &QuorumClient) -> Answers<T> {
        Answers {
            servers: quorum.servers.len(),
            majority: quorum.majority(),
            answers: Vec::new(),
            errors: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, answer: T) {
        self.answers.push(answer);
    }

    pub(super) fn fail(&mut self, error: Error) {
        self.errors.push(error);
    }

    pub(super) fn are_majority(&self) -> bool {
        self.answers.len() >= self.majority
    }

    pub(super) fn so_far(&self) -> &[T] {
        &self.answers
    }

    /// How many servers have neither answered nor failed.
    pub(super) fn outstanding(&self) -> usize {
        self.servers - self.answers.len() - self.errors.len()
    }

    /// The answers, if they come from a majority of the servers.
    pub(super) fn of_majority(self) -> Result<Vec<T>> {
        if self.are_majority() {
            return Ok(self.answers);
        }
        Err(no_majority(self.servers, self.answers.len(), &self.errors))
    }
}

/// What the servers have answered to a try.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) servers: usize,
    pub(super) majority: usize,
    pub(super) outstanding: usize,
    /// After what time each server that is busy can be free.
    pub(super) ttls: Vec<Duration>,
    /// How many wait where most do.
    pub(super) ahead: u64,
    pub(super) errors: Vec<Error>,
}

impl Tally {
    fn answered(&self) -> usize {
        self.servers - self.outstanding - self.errors.len()
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answered() >= self.majority
    }

    fn is_majority_away(&self) -> bool {
        self.errors.len() > self.servers - self.majority
    }

    /// Whether these votes can no longer become a majority. Too few may be left although most servers have
    /// not answered: then it is not known yet whether the lock is busy, or the servers are away.
    pub(super) fn is_over(&self, votes: usize) -> bool {
        let is_known = self.is_answered() || self.is_majority_away();
        is_known && votes + self.outstanding < self.majority
    }

    /// The result of a try that got only these votes.
    pub(super) fn verdict(mut self, votes: usize) -> Result<Tried<Fence>> {
        if self.is_majority_away() {
            return Err(no_majority(self.servers, self.answered(), &self.errors));
        }
        if let Some(closed) = (self.errors.into_iter()).find(|error| matches!(error, Error::Closed)) {
            return Err(closed);
        }
        // The servers that granted the lock count as free, and those that have not answered may be.
        let free = votes + self.outstanding;
        self.ttls.resize(self.ttls.len() + free, Duration::ZERO);
        self.ttls.sort_unstable();
        let last = self.ttls.len().min(self.majority).saturating_sub(1);
        Ok(Tried::Busy {
            ttl: self.ttls.get(last).copied().unwrap_or_default(),
            ahead: self.ahead,
        })
    }
}

/// The smallest majority of `servers`.
pub(crate) fn majority_of(servers: usize) -> usize {
    servers / 2 + 1
}

/// The error when only `answering` of `servers` answered.
pub(crate) fn no_majority(servers: usize, answering: usize, errors: &[Error]) -> Error {
    let wanted = majority_of(servers);
    let refusals = errors.iter().filter(|error| matches!(error, Error::Refused(_)));
    if let Some(closed) = errors.iter().find(|error| matches!(error, Error::Closed)) {
        return closed.clone();
    }
    // The servers that do not refuse are too few for a majority.
    if let Some(refused) = refusals.clone().nth(servers - wanted) {
        return refused.clone();
    }
    let why = errors.iter().find_map(|error| match error {
        Error::Unavailable(why) => Some(why.clone()),
        _ => None,
    });
    let refused = refusals.clone().find_map(|error| match error {
        Error::Refused(why) => Some(why.clone()),
        _ => None,
    });
    Error::NoQuorum {
        name: None,
        servers,
        wanted,
        answering,
        why: why
            .or(refused)
            .unwrap_or_else(|| ServerError::new("no answer in time")),
    }
}

/// Until when to wait for what is left, once enough has come.
pub(crate) fn stragglers_until(began: Instant) -> Instant {
    Instant::now() + began.elapsed() + STRAGGLER
}

/// The next of these results, if it comes in time.
pub(crate) async fn next_until<F: Future>(
    futures: &mut FuturesUnordered<F>,
    until: Option<Instant>,
) -> Option<F::Output> {
    match until {
        Some(until) => timeout_at(until, futures.next()).await.ok().flatten(),
        None => futures.next().await,
    }
}
