//! Tests of the whole crate from within. They never ship. The tests of a single module are next to it.

#[cfg(feature = "redis")]
#[cfg(test)]
mod conformance;
#[cfg(test)]
pub(crate) mod double;
#[cfg(feature = "redis")]
pub mod fuzzing;
#[cfg(test)]
mod layers;
#[cfg(test)]
pub(crate) mod scripted_store;
#[cfg(feature = "redis")]
#[cfg(test)]
pub(crate) mod simulation;
