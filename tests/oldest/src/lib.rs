//! Nothing: what it depends on compiles.
