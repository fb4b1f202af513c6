//! What a guard takes: a lock, or some of the permits of a semaphore or a read/write lock.
//!
//! A read/write lock is a semaphore with as many permits as there can be: a reader takes one of them, and a
//! writer all.

use crate::types::error::Invalid;
use crate::types::status::Kind;

/// The largest capacity. The scripts write a number of permits with five digits.
pub(crate) const MOST_PERMITS: u32 = 99_999;
/// The largest capacity with slots. A script reads and writes all of them.
pub(crate) const MOST_SLOTS: u32 = 1_000;

/// A guard takes `weight` permits. It may have them while, with them, at most `capacity` are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permits {
    pub(crate) weight: u32,
    pub(crate) capacity: u32,
}

impl Permits {
    /// What a reader takes.
    pub(crate) const READER: Permits = Permits {
        weight: 1,
        capacity: MOST_PERMITS,
    };
    /// What a writer takes.
    pub(crate) const WRITER: Permits = Permits {
        weight: MOST_PERMITS,
        capacity: MOST_PERMITS,
    };
}

/// What a lock gives to its guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gives {
    /// Itself, to one owner at a time.
    Itself,
    /// Permits of a semaphore.
    Permits(Permits),
    /// A read/write lock to a reader or a writer.
    Shared(Permits),
}

impl Gives {
    /// A lock of this kind, to look at.
    pub(crate) fn looked_at(kind: Kind) -> Gives {
        match kind {
            Kind::Lock => Gives::Itself,
            Kind::Semaphore => Gives::Permits(Permits::READER),
            Kind::ReadWrite => Gives::Shared(Permits::READER),
        }
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            Gives::Itself => Kind::Lock,
            Gives::Permits(_) => Kind::Semaphore,
            Gives::Shared(_) => Kind::ReadWrite,
        }
    }

    /// Of three servers, each guard has two, so a semaphore's guards could have half as many permits again as
    /// its capacity.
    pub(crate) fn check_in_a_quorum(self) -> Result<(), Invalid> {
        let what = match self {
            Gives::Itself => return Ok(()),
            Gives::Permits(_) => "semaphore",
            Gives::Shared(_) => "read/write lock",
        };
        Err(Invalid::new(format!(
            "{what}: must not be used in a quorum, which has plain locks alone"
        )))
    }

    /// The permits that a guard takes. `None` for a plain lock.
    #[inline]
    pub(crate) fn permits(self) -> Result<Option<Permits>, Invalid> {
        match self {
            Gives::Itself => Ok(None),
            Gives::Shared(permits) => Ok(Some(permits)),
            Gives::Permits(Permits { capacity, .. }) if !(1..=MOST_PERMITS).contains(&capacity) => Err(
                Invalid::new(format!("capacity {capacity}: must be from 1 to {MOST_PERMITS}")),
            ),
            Gives::Permits(Permits { weight, capacity }) if !(1..=capacity).contains(&weight) => {
                Err(Invalid::new(format!(
                    "permits {weight}: must be from 1 to the capacity, {capacity}"
                )))
            }
            Gives::Permits(permits) => Ok(Some(permits)),
        }
    }
}
