//! What a name stands for: a lock, a semaphore or a read/write lock. These share nothing.

use clap::builder::{EnumValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use fairlock::{Holder, Kind, LockManager};

use crate::any_lock::AnyLock;
use crate::connection::Place;

/// Which of them is taken, and how much of it.
#[derive(Debug, Args)]
pub(crate) struct Wanted {
    /// Take NAME as a reader, together with others. NAME without -s or -x is another lock, and does not
    /// exclude it.
    #[arg(short, long, conflicts_with_all = ["exclusive", "permits", "of"])]
    pub(super) shared: bool,
    /// Take NAME as a writer, alone. NAME without -s or -x is another lock, and does not exclude it.
    #[arg(short = 'x', short_alias = 'e', long, conflicts_with_all = ["permits", "of"])]
    pub(super) exclusive: bool,
    /// Take this many permits of the semaphore NAME [default: 1].
    #[arg(
        long,
        value_name = "N",
        requires = "of",
        allow_negative_numbers = true,
        value_parser = parse_permits
    )]
    pub(super) permits: Option<u32>,
    /// Take NAME as a semaphore of this many permits. NAME without it is another lock.
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        value_parser = parse_permits
    )]
    pub(super) of: Option<u32>,
}

impl Wanted {
    pub(crate) fn lock(&self, locks: &LockManager, name: &str) -> AnyLock {
        match self.of {
            Some(of) => AnyLock::Semaphore(locks.semaphore(name, of).permits(self.permits.unwrap_or(1))),
            None if self.shared => AnyLock::Read(locks.rw_lock(name)),
            None if self.exclusive => AnyLock::Write(locks.rw_lock(name)),
            None => AnyLock::Lock(locks.lock(name)),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.of {
            Some(_) => Kind::Semaphore,
            None if self.shared || self.exclusive => Kind::ReadWrite,
            None => Kind::Lock,
        }
    }

    /// Whether this holder has as much of it. A writer may do what a reader may.
    pub(crate) fn is_within(&self, holder: &Holder) -> bool {
        holder.permits >= self.permits.unwrap_or(1) && (holder.writes || !self.exclusive)
    }
}

/// Which of them are looked at.
#[derive(Debug, Args)]
pub(crate) struct Kinds {
    /// Look at this kind of lock alone [default: all kinds that are in use].
    #[arg(long, value_name = "KIND", value_parser = EnumValueParser::<Named>::new().map(Kind::from))]
    kind: Option<Kind>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Named {
    Lock,
    #[value(alias = "sem")]
    Semaphore,
    #[value(alias = "rw")]
    ReadWrite,
}

impl From<Named> for Kind {
    fn from(named: Named) -> Kind {
        match named {
            Named::Lock => Kind::Lock,
            Named::Semaphore => Kind::Semaphore,
            Named::ReadWrite => Kind::ReadWrite,
        }
    }
}

impl Kinds {
    pub(crate) fn include(&self, kind: Kind) -> bool {
        self.kind.is_none_or(|only| only == kind)
    }

    /// Those that are looked at there, at least one. A quorum has plain locks alone.
    pub(crate) fn at(&self, place: &Place) -> Vec<Kind> {
        match self.kind {
            Some(only) => vec![only],
            None if place.is_quorum() => vec![Kind::Lock],
            None => vec![Kind::Lock, Kind::Semaphore, Kind::ReadWrite],
        }
    }
}

/// The library knows which of these numbers are allowed.
fn parse_permits(text: &str) -> Result<u32, String> {
    let number = text.parse();
    number.map_err(|_| "must be a whole number from 1 to 99999".to_owned())
}
