//! What a ballot does at each server, and when too many of them have failed.

use std::time::Duration;

use futures_util::future::AbortHandle;

use super::answers::no_majority;
use crate::engine::hold::owned::OwnedHold;
use crate::error::{Error, Result};
use crate::time::backoff::Backoff;

/// What the ballot does at one server, besides a vote that counts.
#[derive(Debug)]
pub(super) struct Seat {
    /// How many requests this server was sent.
    pub(super) attempts: u64,
    pub(super) attempt: Option<AbortHandle>,
    /// A vote that counts no more. It is released once the present attempt has its place.
    pub(super) leaving: Option<OwnedHold>,
    pub(super) is_looking: bool,
    /// Nothing is asked of the server, until the ballot reaches a majority.
    pub(super) is_left: bool,
    pub(super) answer: SeatAnswer,
    /// The pauses before a server that failed is asked again.
    pub(super) backoff: Backoff,
}

/// What the server answered last to an attempt.
#[derive(Debug)]
pub(super) enum SeatAnswer {
    Outstanding,
    /// The request is in the queue, or has the vote.
    Placed,
    Failed(Error),
}

impl Seat {
    pub(super) fn new() -> Seat {
        Seat {
            attempts: 0,
            attempt: None,
            leaving: None,
            is_looking: false,
            is_left: false,
            answer: SeatAnswer::Outstanding,
            backoff: Backoff::new(),
        }
    }

    /// The present attempt is in the queue, or has the vote. Releases the vote before.
    pub(super) fn has_its_place(&mut self) {
        self.leaving = None;
        self.answer = SeatAnswer::Placed;
        self.backoff = Backoff::new();
    }
}

/// Fails if so many servers have failed that the others are no majority. The caller has waited for this long.
pub(super) fn check_failures(seats: &[Seat], majority: usize, waited: Duration) -> Result<()> {
    let (mut answering, mut failures) = (0, Vec::new());
    for seat in seats {
        match &seat.answer {
            SeatAnswer::Failed(error) => failures.push(error.clone()),
            SeatAnswer::Placed => answering += 1,
            SeatAnswer::Outstanding => answering += usize::from(seat.is_left),
        }
    }
    if seats.len() - failures.len() >= majority {
        return Ok(());
    }
    let mut retry_after: Vec<_> = failures.iter().filter_map(Error::retry_after).collect();
    retry_after.sort_unstable();
    Err(match retry_after.len().min(majority).checked_sub(1) {
        // The wait is over. The lock can be free when a majority of the servers can be.
        Some(last) => Error::Timeout {
            waited,
            retry_after: retry_after[last],
        },
        None => no_majority(seats.len(), answering, &failures),
    })
}
