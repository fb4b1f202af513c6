//! The protocol of fairlock as a state machine, every interleaving of which is explored: what the scripts and the
//! clients do, and what a network does to them.
//!
//! Modelled are queueing, hand-over with removal and return, records and `gone`, subscriptions, claim windows,
//! leases that run out, grants that are heard of too late, cancellation, calls that come after their caller's
//! bound, lost messages and connections, calls of closed connections that run later, slow clients and dead ones.
//! Left out are re-entrance, tries, servers that forget, and all numbers: how long something takes is not seen
//! here, only in which order things can happen.

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
