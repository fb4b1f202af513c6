//! What a ballot does once it is decided, for as long as its hold lasts. It replaces votes that are lost, and
//! asks for those that it has not got, before all who wait. So a hold that lasts outlives one server after
//! the other, as long as a majority is there at any time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::ballot::Ballot;
use crate::fence::Fence;
use crate::time::server_time::Ticket;

/// The ticket of a holder that asks for a missing vote: before all who wait, since nobody can hold the lock
/// with that vote while this client does.
const BEFORE_ALL: Ticket = Ticket(1);

impl Ballot {
    /// The votes are a hold from now on: they get their whole lease, and those that are missing are asked for
    /// before all who wait, without a bound.
    pub(super) fn begin_hold(&mut self, fence: Fence) {
        self.look_at = None;
        self.floor.begin_hold(fence);
        self.ticket = BEFORE_ALL;
        self.until = None;
        self.join_votes();
    }

    /// Whether the ballot is decided.
    pub(super) fn is_hold(&self) -> bool {
        self.ticket == BEFORE_ALL
    }

    /// Drops a vote that is lost, and asks for it again. A vote that the server took away is not asked for:
    /// a lock that was taken by force must not come back.
    pub(super) fn repair(&mut self, server: usize) {
        drop(self.votes().take(server));
        if self.votes().missing().contains(&server) {
            self.ask(server, Duration::ZERO);
        }
    }

    fn join_votes(&self) {
        let decided = self.votes().decided();
        for (server, hold) in self.votes().holds() {
            if hold.join(decided, self.params.terms.lease()) {
                self.quorum.servers[server].background().watch(&hold);
            }
        }
    }

    /// Keeps the votes of a hold together until it is over.
    pub(super) async fn keep(mut self: Box<Self>) {
        let votes = Arc::clone(self.votes());
        let first_renewal = Instant::now() + self.params.terms.grant() / 3;
        let mut asks_first = false;
        while votes.check().is_ok() {
            tokio::select! {
                biased;
                _ = votes.lost() => {}
                // One server after the other may fail. An error of one of them does not end the hold.
                _ = self.step() => {}
                () = sleep_until(first_renewal), if !asks_first => {
                    asks_first = true;
                    for server in votes.missing() {
                        self.ask(server, Duration::ZERO);
                    }
                }
            }
            self.look_at = None;
            self.join_votes();
            if asks_first {
                // A vote that came later may have a smaller fence. Its server may be one of a majority whose
                // others forget the fence of this hold.
                self.raise_to(self.floor.own());
            }
        }
        // What is left of the votes is of no use.
        let (_, _, left) = votes.end_to_release();
        drop(left);
    }
}
