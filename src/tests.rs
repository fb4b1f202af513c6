//! What tests the whole crate from within, and never ships. The tests of one module are beside it.

#[cfg(feature = "redis")]
#[cfg(test)]
mod conformance;
#[cfg(feature = "redis")]
pub mod fuzzing;
#[cfg(test)]
mod layers;
#[cfg(test)]
pub(crate) mod scripted_store;
#[cfg(test)]
pub(crate) mod simulation;
