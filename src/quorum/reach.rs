//! Whether a ballot reaches a majority of the servers.
//!
//! A client may be cut off from so many servers that the others are no majority. Its ballots cannot be
//! decided then, but their requests may be in the way of the other clients, which need every vote because a
//! minority of the servers is down. So a ballot leaves the servers that it reaches while they are no
//! majority: it has neither a vote nor a place in a queue there. It comes back to all of them at once, under
//! its ticket.

use std::time::Duration;

use super::ballot::Ballot;
use super::seat::SeatAnswer;

impl Ballot {
    /// Whether the server may give its vote: it answers this client.
    fn reaches(&self, server: usize) -> bool {
        let waitlists = self.quorum.servers[server].waitlists();
        let has_failed = matches!(self.seats[server].answer, SeatAnswer::Failed(_));
        !has_failed && !waitlists.is_failing(&self.params.channel)
    }

    /// Leaves the servers that are reached, if they are no majority. Otherwise comes back to those that were
    /// left.
    pub(super) fn leave_or_come_back(&mut self) {
        let servers = 0..self.seats.len();
        let reached = servers.clone().filter(|server| self.reaches(*server));
        let reaches_majority = reached.count() >= self.quorum.majority();
        for server in servers {
            let leaves = !reaches_majority && self.reaches(server);
            match (std::mem::replace(&mut self.seats[server].is_left, leaves), leaves) {
                (false, true) => self.leave(server),
                (true, false) => self.ask(server, Duration::ZERO),
                _ => {}
            }
        }
    }

    /// Withdraws whatever the ballot has at this server.
    fn leave(&mut self, server: usize) {
        drop(self.votes().take(server));
        let seat = &mut self.seats[server];
        seat.leaving = None;
        if let Some(attempt) = seat.attempt.take() {
            attempt.abort();
        }
    }
}
