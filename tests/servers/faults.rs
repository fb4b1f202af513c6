//! Failing processes, connections and servers, tested from outside with real servers, networks that fail on
//! command, and processes that are killed and stopped.
//!
//! All of these tests are in one binary, so that they run side by side: they mostly wait. Each has its own
//! server.

mod bounds;
mod clocks;
mod connections;
mod damaged;
mod flood;
mod forgetful;
mod holders;
mod leaders;
mod local_handoffs;
mod network;
mod overload;
mod parts;
mod permits;
mod rate_limit;
mod refusals;
mod replies;
mod residue;
mod retention;
mod roles;
mod scene;
mod sets;
mod unwilling;
mod waiters;
