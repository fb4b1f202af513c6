//! The protocol of fairlock as state machines whose every interleaving is explored: the scripts, the clients,
//! and the network between them. `single` has the lock on one server, and `quorum` the lock on a majority of
//! independent servers.
//!
//! The models leave out all numbers: they show in which order things can happen, but not how long they take.

pub mod quorum;
pub mod search;
pub mod single;
pub mod walk;
