//! The lock on a majority of independent servers, as a protocol over locks of one server each.
//!
//! A client asks all servers at once. On each it has a *voter*, which waits there as any client of one server
//! waits, and reports a *vote* when it is granted the lock of that server. Its *ballot* is decided when a
//! majority of its votes count under one fence: the client *holds*. Votes of different fences are raised to
//! the largest. Two majorities share a server, and a server gives its lock to one request at a time, under a
//! fence that only grows. So there is one holder, and the fences of holders increase.
//!
//! Several clients may each have too few votes. All servers queue a client under one *ticket*. A ballot that
//! is short looks at its votes by renewing them, and the reply says whether an earlier ticket is queued. If
//! so, the vote is *yielded*: it counts no more, a new request queues behind the earlier one, and when that
//! is answered, the former request is withdrawn. So the earliest ticket gets all votes, and nobody need know
//! who the others are.
//!
//! A holder asks again for the votes that it misses, before all who wait. Then a server that fails later
//! costs nothing. A client that lets go withdraws everything from all servers, whatever it believes to have
//! there. A server that forgot is *mute* until every vote that it may have given is over.
//!
//! A holder may pass the lock on inside its process, from turn to turn. Each turn has a fence of its own, one
//! of those that each of its requests reserved. The servers hear of it when their votes end: a release tells
//! the last fence that was used, and otherwise all that were reserved count as used.
//!
//! Notes of absence and subscriptions belong to the lock on one server, and its model (`single`) shows them.
//! The floors of acquires are left out: they follow clocks, and spare raises.

pub mod ballot;
pub mod configuration;
pub mod counterexamples;
pub mod faults;
pub mod list;
pub mod properties;
pub mod protocol;
pub mod rules;
pub mod server;
pub mod state;
pub mod voter;

use crate::quorum::configuration::Configuration;
use crate::quorum::protocol::{Action, Protocol};
use crate::search::{self, Limits, Outcome};

impl search::Configuration for Configuration {
    type Action = Action;

    fn name(&self) -> String {
        match self.fences {
            configuration::NONE_GRANTED => self.budget.to_string(),
            fences => format!("{}, fences {fences:?}", self.budget),
        }
    }

    fn size(&self) -> String {
        format!("{} x {}", state::SERVERS, self.clients)
    }

    fn explore(&self, limits: Limits) -> Outcome<Action> {
        search::explore(|until| Protocol::until(*self, until), limits)
    }
}
