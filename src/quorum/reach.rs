//! Whether a ballot reaches a majority of the servers.
//!
//! A client may be cut off from so many servers that the others are no majority. Its ballots cannot be
//! decided then, but their votes may be what the other clients lack, because a minority of the servers is
//! down. So a ballot that has too few votes for some time asks the servers that gave it none whether they
//! answer. While too few do, it gives up each vote that anybody else waits for, however late. It asks for
//! these votes again, under its ticket, once it reaches a majority.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::ballot::{Ballot, Event};
use crate::store::Failure;
use crate::time::server_time::Ticket;

/// A ticket that is later than all others, and exact as a number in Lua.
const AFTER_ALL: Ticket = Ticket((1 << 53) - 1);

/// Whether a server answers a ballot that it gave no vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// As far as is known.
    Answers,
    Asked,
    Silent,
}

impl Ballot {
    /// Asks the servers that gave no vote whether they answer.
    pub(super) fn ask_for_answers(&mut self) {
        for server in self.votes().missing() {
            let seat = &mut self.seats[server];
            if seat.reach == Reach::Answers && !seat.is_given_up {
                seat.reach = Reach::Asked;
                self.await_answer(server, Duration::ZERO);
            }
        }
    }

    fn await_answer(&self, server: usize, pause: Duration) {
        let client = Arc::clone(self.quorum.servers[server].client());
        self.pending.push(Box::pin(async move {
            sleep(pause).await;
            let answer = client.store.time().await;
            let is_silent = matches!(answer, Err(Failure::Unknown(_) | Failure::NotExecuted(_)));
            (server, Event::Reached(!is_silent))
        }));
    }

    /// A server answers, or does not. One that does not is asked again until it does, or until the ballot is
    /// decided.
    pub(super) fn reached(&mut self, server: usize, answers: bool) {
        let is_decided = self.is_hold();
        let seat = &mut self.seats[server];
        if answers || is_decided {
            seat.reach = Reach::Answers;
        } else {
            seat.reach = Reach::Silent;
            let pause = seat.backoff.step();
            self.await_answer(server, pause);
        }
    }

    /// Whether so many servers may give their votes that they are a majority, as far as is known.
    fn reaches_majority(&self) -> bool {
        let reached = self.seats.iter().filter(|seat| seat.is_reached());
        reached.count() >= self.quorum.majority()
    }

    /// While there are too few votes, requests with an earlier ticket than this one may have them.
    pub(super) fn yields_to_earlier_than(&self) -> Ticket {
        if self.reaches_majority() {
            self.ticket
        } else {
            AFTER_ALL
        }
    }

    /// Gives a vote up for another request. Asks for it again at once, behind that one, if a majority is
    /// reached.
    pub(super) fn yield_vote(&mut self, server: usize) {
        if self.reaches_majority() {
            self.begin_again(server);
        } else {
            drop(self.votes().take(server));
            self.seats[server].is_given_up = true;
        }
    }

    /// Asks for the votes that were given up while no majority was reached, if one is by now.
    pub(super) fn ask_for_given_up_votes(&mut self) {
        if !self.seats.iter().any(|seat| seat.is_given_up) || !self.reaches_majority() {
            return;
        }
        for server in 0..self.seats.len() {
            if std::mem::take(&mut self.seats[server].is_given_up) {
                self.ask(server, Duration::ZERO);
            }
        }
    }
}
