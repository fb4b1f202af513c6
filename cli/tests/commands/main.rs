//! What the command promises, shown by real processes on real servers.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod check;
mod generated;
mod hold;
mod lead;
mod look;
mod loss;
mod nesting;
mod permits;
mod pty;
mod run;
mod scene;
mod settings;
mod several;
mod signals;
mod terminal;
mod top;
mod waiting;
