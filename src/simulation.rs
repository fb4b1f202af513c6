//! The client code above the [`Store`](crate::store::Store), under a network, processes and a server that do their worst.
//!
//! Each seed is one small world: clients whose tasks ask for locks in all ways and give them back in all ways, on the
//! in-memory store, whose rules are those of the scripts. Between them lies a network that delays, loses and repeats,
//! connections that break and come back, processes that stand still or die, a server that refuses, stalls or forgets.
//! Then all is calm, and nothing may be left. Time is tokio's paused clock, and everything is drawn from the seed: the
//! same seed gives the same history.
//!
//! What must be true of every history is in `invariants`; what must be true at the end, in `World::quiet_end`.
//!
//! # What it notices
//! With one rule of the client taken away at a time, of some 200 to 400 seeds so many broke a promise:
//!
//! | taken away | seeds | as |
//! |---|---|---|
//! | an acquire's `not_after` | 89 of 211 | errands that never end |
//! | the anchor of a push: its deadline is receipt + claim window | 1 of 189 | two at once, no larger fence |
//! | deadlines counted from sending: they are from receipt | 10 of 270 | two at once |
//! | the local clock ends a hold | 13 of 402 | two at once |
//! | the `out` of a cancelled call | 81 of 196 | a hold that nobody knows of |
//! | the release of a dropped hold | 5 of 5 | still held, starved |
//! | a release is the earlier attempt's only if the lease was not over, and one was unanswered | 31 of 423 | a release that was none |
//!
//! What only costs time is not noticed, since timers make up for it: to ask again after a reconnect or when told `gone`,
//! the `out` after unanswered calls. Nor is what another rule makes up for: to give up a grant with too little
//! left, whose guard would end in time by itself; or a renewal's word that the lock was taken.

mod ear;
mod faults;
mod history;
mod idleness;
mod invariants;
mod line;
mod network;
mod pace;
mod plan;
pub(crate) mod process;
mod run;
mod server;
mod tally;
mod tests;
mod user;
