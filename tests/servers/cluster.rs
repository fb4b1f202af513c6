//! The locks in a real cluster of six servers: three masters with a replica each.

mod addresses;
mod databases;
mod failover;
mod leaders;
mod migration;
mod permits;
mod rights;
mod routing;
mod scene;
mod unserved;
