//! One server with one lock, or with the permits of a semaphore or a read/write lock: the scripts, the
//! clients, and the network between them.
//!
//! The model covers queueing, hand-over with removal and return, notes of clients that are absent,
//! subscriptions, claim windows, leases that expire, late grants, cancellation, calls that run after their
//! caller's bound, lost messages and connections, calls of closed connections that run later, slow clients
//! and dead ones, locks that are taken away by force, and holds that clients keep between turns. It leaves
//! out re-entrance, tries, servers that lose data other than timers and notes, and permits that are given
//! back in part.

pub mod client;
pub mod configuration;
pub mod counterexamples;
pub mod network;
pub mod permits;
pub mod properties;
pub mod protocol;
pub mod retained;
pub mod rules;
pub mod server;
pub mod state;

use crate::search::{self, Limits, Outcome};
use crate::single::configuration::{Configuration, Listening};
use crate::single::protocol::{Action, Protocol};
use crate::single::state::Permits;

impl search::Configuration for Configuration {
    type Action = Action;

    fn name(&self) -> String {
        let listening = match self.listening {
            Listening::Counted => "",
            Listening::Uncounted => ", uncounted",
            Listening::FirstIsDeaf => ", a deaf client",
        };
        format!("{}{listening}", self.name)
    }

    fn size(&self) -> String {
        if self.permits.is_empty() {
            return format!("{:?}", self.callers);
        }
        let mut permits = self.permits.iter();
        let clients = self.callers.iter().map(|&callers| {
            let asked = permits.by_ref().take(callers);
            let asked: Vec<_> = asked
                .map(|Permits { weight, capacity }| format!("{weight}/{capacity}"))
                .collect();
            asked.join(" ")
        });
        clients.collect::<Vec<_>>().join(", ")
    }

    fn explore(&self, limits: Limits) -> Outcome<Action> {
        search::explore(|until| Protocol::until(*self, until), limits)
    }
}
