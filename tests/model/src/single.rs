//! One server with one lock: the scripts, the clients, and the network between them.
//!
//! The model covers queueing, hand-over with removal and return, presence records and the answer *not
//! registered*, subscriptions, claim windows, leases that expire, late grants, cancellation, calls that run
//! after their caller's bound, lost messages and connections, calls of closed connections that run later,
//! slow clients and dead ones. It leaves out re-entrance, tries, and servers that lose data.

pub mod client;
pub mod configuration;
pub mod counterexamples;
pub mod network;
pub mod properties;
pub mod protocol;
pub mod rules;
pub mod server;
pub mod state;

use crate::search::{self, Limits, Outcome};
use crate::single::configuration::Configuration;
use crate::single::protocol::{Action, Protocol};

impl search::Configuration for Configuration {
    type Action = Action;

    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn size(&self) -> String {
        format!("{:?}", self.callers)
    }

    fn explore(&self, limits: Limits) -> Outcome<Action> {
        search::explore(|until| Protocol::until(*self, until), limits)
    }
}
