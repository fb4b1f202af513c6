//! What a ballot does at each server, and whether too many of them have failed.

use std::time::Duration;

use futures_util::future::AbortHandle;

use crate::engine::hold::owned::OwnedHold;
use crate::error::Error;
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

/// How the servers have failed so far.
pub(super) enum Failures {
    /// The others can form a majority.
    Few,
    /// They cannot, and these are the errors of those that failed. So many of the others have answered.
    Many { errors: Vec<Error>, answering: usize },
    /// The bound of the wait is over. These are the errors of the servers that failed before, and this is the
    /// time until a majority can be free. The others have answered, except for those that are outstanding.
    BoundOver {
        errors: Vec<Error>,
        outstanding: Vec<usize>,
        free_in: Duration,
    },
}

impl Failures {
    pub(super) fn of(seats: &[Seat], majority: usize) -> Failures {
        let (mut errors, mut outstanding, mut free_in, mut answering) = (vec![], vec![], vec![], 0);
        for (server, seat) in seats.iter().enumerate() {
            match &seat.answer {
                SeatAnswer::Failed(Error::Timeout { retry_after, .. }) => free_in.push(*retry_after),
                SeatAnswer::Failed(error) => errors.push(error.clone()),
                SeatAnswer::Placed => answering += 1,
                SeatAnswer::Outstanding => {
                    outstanding.push(server);
                    answering += usize::from(seat.is_left);
                }
            }
        }
        if seats.len() - errors.len() - free_in.len() >= majority {
            return Failures::Few;
        }
        free_in.sort_unstable();
        match free_in.get(free_in.len().min(majority).wrapping_sub(1)) {
            Some(&free_in) => Failures::BoundOver {
                errors,
                outstanding,
                free_in,
            },
            None => Failures::Many { errors, answering },
        }
    }
}
