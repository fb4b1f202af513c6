//! Tests of the promises, one by one, on the rules.

mod permits;
mod promises;
mod world;
