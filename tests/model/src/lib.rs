//! The protocol of fairlock as a state machine, every interleaving of which is explored: what the scripts and the
//! clients do, and what a network does to them.
//!
//! Modelled are queueing, hand-over with removal and return, records and `gone`, subscriptions, claim windows, leases
//! that run out, grants that are heard of too late, cancellation, lost messages and connections, calls of closed connections
//! that run later, slow clients and dead ones. Left out are re-entrance, tries, servers that forget, and all numbers:
//! how long something takes is not seen here, only in which order things can happen.
//!
//! The model is ahead of the crate in five points, without which it violates a promise:
//! - of two tickets of a request the earlier counts, and the answer tells that it was moved
//!   ([`Rule::EarlierTicketCounts`](rules::Rule::EarlierTicketCounts); `ZADD NX` keeps the later);
//! - an answer that shows a used request queued or granted anew is followed by an `out`
//!   ([`Rule::OutForUnwantedGrant`](rules::Rule::OutForUnwantedGrant));
//! - a room asks for the request with the oldest ticket, not for the one with the lowest number
//!   ([`Rule::AskForTheNext`](rules::Rule::AskForTheNext));
//! - after a reconnect, an answer to an earlier call does not tell that the record is open;
//! - who had been queued and is then granted the lock by its own call takes the client's record for lost.

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
