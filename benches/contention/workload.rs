//! What the waiters of a round share: a lock, a semaphore, or a read/write lock.

use fairlock_benches::analysis::Party;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Workload {
    /// One lock
    Lock,
    /// A semaphore of --capacity permits, of which each waiter takes one
    Semaphore,
    /// A read/write lock with constant readers, and writers that come again and again
    Rw,
    /// A read/write lock with readers only
    Readers,
}

impl Workload {
    /// The values of arguments that are not given: waiters, processes, holds in µs.
    pub(crate) const fn defaults(self) -> (&'static [u32], &'static [u32], &'static [u64]) {
        match self {
            Workload::Lock => (&[4, 64, 256], &[4], &[0]),
            Workload::Semaphore => (&[4, 64], &[4], &[0, 5_000]),
            Workload::Rw => (&[64], &[4], &[5_000]),
            Workload::Readers => (&[64], &[1, 2, 4, 8], &[0]),
        }
    }

    /// The sides of a round, each of which has figures of its own.
    pub(crate) const fn sides(self) -> &'static [Side] {
        match self {
            Workload::Lock => &[Side::Lock],
            Workload::Semaphore => &[Side::Permit],
            Workload::Rw => &[Side::Read, Side::Write],
            Workload::Readers => &[Side::Read],
        }
    }

    /// What it is, for the reader of the figures.
    pub(crate) fn title(self, capacity: u32) -> String {
        match self {
            Workload::Lock => "one lock".to_owned(),
            Workload::Semaphore => format!("a semaphore of {capacity}"),
            Workload::Rw => "a read/write lock, readers and writers".to_owned(),
            Workload::Readers => "a read/write lock, readers only".to_owned(),
        }
    }
}

/// What one client process takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Side {
    Lock,
    /// One permit of a semaphore
    Permit,
    Read,
    Write,
}

impl Side {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Side::Lock => "lock",
            Side::Permit => "permit",
            Side::Read => "read",
            Side::Write => "write",
        }
    }

    /// How many of a round's waiters are on this side.
    pub(crate) fn waiters(self, load: Load) -> u32 {
        match self {
            Side::Lock | Side::Permit => load.waiters,
            Side::Read => load.waiters - load.writers,
            Side::Write => load.writers,
        }
    }

    /// The processes that these waiters share. Writers have a process of their own.
    pub(crate) fn processes(self, load: Load) -> u32 {
        match self {
            Side::Write => 1,
            _ => load.processes.min(self.waiters(load)),
        }
    }

    /// These waiters as the analysis sees them. A writer takes all permits of a read/write lock.
    pub(crate) fn party(self, load: Load, capacity: u32) -> Party {
        let (permits, capacity) = match self {
            Side::Lock => (1, 1),
            Side::Permit => (1, capacity),
            Side::Read => (1, u32::MAX),
            Side::Write => (u32::MAX, u32::MAX),
        };
        Party {
            waiters: self.waiters(load) as usize,
            permits,
            capacity,
        }
    }
}

/// How many want it, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) waiters: u32,
    /// How many of the waiters write.
    pub(crate) writers: u32,
    pub(crate) processes: u32,
    pub(crate) hold_us: u64,
}
