//! What the locks promise when processes, connections and servers fail, tested from outside: on real servers,
//! through networks that fail on command, and with processes that are killed and stopped.
//!
//! One binary, so that the tests, which mostly wait, run beside each other. Each has a server of its own.

mod clocks;
mod connections;
mod flood;
mod forgetful;
mod holders;
mod network;
mod overload;
mod parts;
mod refusals;
mod replies;
mod residue;
mod roles;
mod scene;
mod unwilling;
mod waiters;
