//! The client code above the [`Store`](crate::store::Store), under a network, processes and a server that do their worst.
//!
//! Each seed is one small world: clients whose tasks ask for locks in all ways and give them back in all ways, on the
//! in-memory store, whose rules are those of the scripts. Between them lies a network that delays, loses and repeats,
//! connections that break and come back, processes that stand still or die, a server that refuses, stalls or forgets.
//! Then all is calm, and nothing may be left. Time is tokio's paused clock, and everything is drawn from the seed: the
//! same seed gives the same history.
//!
//! What must be true of every history is in `invariants`; what must be true at the end, in [`World::quiet_end`].

mod ear;
mod faults;
mod history;
mod invariants;
mod line;
mod network;
mod plan;
pub(crate) mod process;
mod run;
mod server;
mod tally;
mod tests;
mod user;
