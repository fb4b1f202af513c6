//! The protocol of fairlock as a state machine whose every interleaving is explored: the scripts, the
//! clients, and the network between them.
//!
//! The model covers queueing, hand-over with removal and return, presence records and the answer *not
//! registered*, subscriptions, claim windows, leases that expire, late grants, cancellation, calls that run
//! after their caller's bound, lost messages and connections, calls of closed connections that run later,
//! slow clients and dead ones. It leaves out re-entrance, tries, servers that lose data, and all numbers: it
//! shows in which order things can happen, but not how long they take.

pub mod client;
pub mod configuration;
pub mod counterexamples;
pub mod network;
pub mod properties;
pub mod protocol;
pub mod rules;
pub mod search;
pub mod server;
pub mod state;
