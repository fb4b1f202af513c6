//! A fair distributed lock for async Rust on Redis and Valkey.
//!
//! Waiters queue on the server in arrival order and sleep on a pub/sub channel. The release itself gives the
//! lock to the next live waiter and notifies that waiter alone: one round trip per hand-off and two commands
//! per acquisition, however many wait.
//!
//! ```
//! use fairlock::{Error, LockManager};
//!
//! #[tokio::main]
//! async fn main() -> fairlock::Result<()> {
//!     let locks = LockManager::in_memory();
//!     let guard = locks.lock("report:42").await?; // first come, first served; renewed while the guard lives
//!     println!("writing report 42 under fence {}", guard.fence()); // a larger number with each grant
//!     if let Err(Error::Busy { waiting, .. }) = locks.lock("report:42").try_acquire().await {
//!         println!("anybody else finds it busy, and {waiting} wait");
//!     }
//!     guard.release().await // now the next waiter has the lock
//! }
//! ```
//!
//! These locks are in memory. `LockManager::connect(url)` puts them on a server, where all processes share
//! them. The [`guide`] has waiting, errors, leases and patterns, and pages of its own on
//! [guarantees](guide::guarantees), [operations](guide::operations), [permits](guide::permits),
//! [leaders](guide::leaders), [quorums](guide::quorum), work that takes effect [once](guide::once), and what
//! to know when you [come from another lock](guide::coming_from).
//!
//! # A lease, not a mutex
//! The server keeps a hold for the length of its lease, and the client renews it. A process that is stopped
//! or cut off for longer loses its lock to another one. A guard knows that by its own clock no later than the
//! server, so **code that stops when it is told [`Lost`] never overlaps with the next holder**, as long as
//! there is one server, which keeps its data and whose clock is not set forward, and nobody takes the lock
//! away [by force](Lock::force_release). A [quorum](Quorum) keeps this promise when a minority of its servers
//! fail or restart.
//!
//! Code cannot stop at every instruction. A resource that notes the fence of each read and write, and refuses
//! smaller ones than the largest that it has seen, refuses the writes of a stale holder ([`Fence`]). It does
//! not undo what that holder did elsewhere, such as a payment; see [work that takes effect
//! once](guide::once).
//!
//! All this needs clocks whose rates differ by 1 ‰ at most, and which go on while nothing else does. A
//! virtual machine that is paused together with its clocks notices nothing at its first look. Only the fence
//! helps there.
//!
//! # Overview
//! - [`LockManager`]: one client of one server, of a cluster, of a [quorum](Quorum), or
//!   [in memory](LockManager::in_memory); `lock`, `semaphore`, `rw_lock`, `all`, `list`, `stats`,
//!   `close`. [`LockManagerBuilder`] has its settings.
//! - [`Lock`]: a name and options, without I/O; `acquire` (or `.await`), `acquire_timeout`, `try_acquire`,
//!   `with`, `status`, `watch`, `force_release`.
//! - [`Semaphore`] and [`RwLock`]: several permits, and many readers or one writer, with the same calls.
//! - [`LockSet`]: several locks that are acquired together.
//! - [`LockGuard`]: a lock that is held; `check`, `lost`, `run`, `release`. [`SemaphoreGuard`], [`ReadGuard`]
//!   and [`WriteGuard`] are one, too.
//! - [`HoldToken`]: what tasks of the holder watch.
//! - [`Leadership`]: a lock for leaders; `campaign`, `run`, `leader`.
//! - [`Error`]: sorted by the caller's next step.
//! - [`spin`]: a lock that tries again and again, as a baseline and a fallback.
//!
//! # Tracing
//! The crate emits the spans `fairlock.acquire`, `fairlock.try_acquire`, `fairlock.renew` and
//! `fairlock.release` (DEBUG), with the fields `lock.name`, `lock.group`, `lock.fence`, `lock.votes` (in a
//! quorum), `lock.local_handoff`, `lock.outcome`, `lock.wait_ms`, `server.address`, `error.type` and
//! `otel.status_code`. Their names and fields are part of the interface. At WARN it reports a lost lease and
//! trouble with the server.
//!
//! # Features
//! - `redis` (default): locks on a server. Without it there are only those in memory.
//! - `rustls`, `native-tls`: URLs with `rediss://`, by rustls or by the system's TLS library.
//!   With both, rustls does it.
//! - `metrics`: records events by the `metrics` crate, for any exporter.
//! - `serde`: serializes [`Fence`], [`Owner`], [`Status`], [`Holder`], [`Listed`] and [`Stats`], times as
//!   `…_ms`. A fence is an integer. All but stats can be read again.
//! - `sqlx`, `postgres-types`: a [`Fence`] is bound to a query and read from a row, as an `i64` is. sqlx 0.9
//!   needs Rust 1.94.
//! - `diagnose`: the module `diagnose`, which examines servers before locks are kept on them.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_docs)]
// The seam to a server is wider than the in-memory store alone needs.
#![cfg_attr(not(feature = "redis"), allow(dead_code))]

// The layers, from the top down: a module uses its own layer and those below it. ARCHITECTURE.md says what
// each is for. `tests` never ships.
mod api;
mod caller;
mod engine;
mod protocol;
mod quorum;
mod servers;
mod sync;
#[cfg(any(fuzzing, test))]
mod tests;
mod time;
mod types;

pub use api::guard::{HoldToken, LockGuard, ReadGuard, SemaphoreGuard, WriteGuard};
#[cfg(any(doc, all(doctest, feature = "redis")))]
pub use api::guide;
pub use api::leadership::Leadership;
pub use api::lock::Lock;
pub use api::lock_set::{LockSet, LockSetGuard};
pub use api::manager::{LockManager, LockManagerBuilder, Quorum, Stats};
pub use api::rate_limit::RateLimit;
pub use api::rw_lock::{ReadLock, RwLock, WriteLock};
pub use api::semaphore::Semaphore;
pub use api::spin;
pub use servers::memory::MemoryStore;
#[cfg(all(feature = "redis", any(fuzzing, test)))]
#[doc(hidden)]
pub use tests::fuzzing;
#[cfg(feature = "redis")]
pub use types::credentials::Credentials;
pub use types::error::{Error, HoldEnd, Invalid, Lost, Result, ServerError, Unreleased};
pub use types::fence::Fence;
pub use types::lease::{Lease, LeaseState};
pub use types::owner::Owner;
pub use types::status::{Holder, Kind, Listed, LockStream, RateStatus, Status};
#[cfg(feature = "redis")]
pub use types::tls::Tls;

/// Examines servers before locks are kept on them.
#[cfg(feature = "diagnose")]
pub mod diagnose {
    pub use crate::api::manager::diagnose::{quorum, server};
    pub use crate::types::diagnosis::{Finding, Subject, Verdict};
}

/// The programs on pages that are no part of the guide, which `cargo test --doc` compiles.
#[cfg(all(doctest, feature = "redis"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;

    #[doc = include_str!("../docs/comparison.md")]
    struct Comparison;

    #[doc = include_str!("../docs/evidence.md")]
    struct Evidence;
}
