//! Fencing tokens.

mod sql;

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::types::error::{Error, Invalid};

/// A fencing token: the number of a change of owner. It increases strictly per lock.
///
/// Hand it to the resource that the lock protects, with each read and each write. The resource notes the
/// largest fence that it has seen, and refuses smaller ones. So it accepts no write under a smaller fence,
/// and once a holder has read, no earlier one can write, whatever happens to leases ([Kleppmann 2016]). A
/// resource that notes the fences of writes alone accepts a stale write between the read and the write of the
/// next holder, which then undoes it.
///
/// A fence is the server's clock in µs at the change of owner, or one more than the last fence where that is
/// larger. Owners that hand over inside one process ([`local_handoffs`](crate::Lock::local_handoffs)) count
/// on from there.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::Fence;
///
/// let fence = locks.lock("invoice:42").acquire().await?.fence();
/// let column = i64::from(fence); // SQL has no unsigned integers
/// assert_eq!(Fence::try_from(column)?, fence);
/// assert_eq!(fence.to_string().parse::<Fence>()?, fence); // through an environment variable, or a header
/// let later = locks.lock("invoice:42").acquire().await?.fence();
/// assert!(later > fence && later.get() > fence.get());
/// # Ok(()) }
/// ```
/// A holder that was frozen between its read and its write:
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::Fence;
///
/// struct Account {
///     balance: i64,
///     seen: Option<Fence>,
/// }
///
/// impl Account {
///     /// UPDATE account SET fence = $2 WHERE id = $1 AND fence <= $2 RETURNING balance
///     fn read(&mut self, fence: Fence) -> Option<i64> {
///         let is_stale = self.seen.is_some_and(|seen| seen > fence);
///         self.seen = self.seen.max(Some(fence));
///         (!is_stale).then_some(self.balance)
///     }
///
///     /// UPDATE account SET balance = $3 WHERE id = $1 AND fence = $2
///     fn write(&mut self, balance: i64, fence: Fence) -> bool {
///         let is_own = self.seen == Some(fence);
///         if is_own {
///             self.balance = balance;
///         }
///         is_own
///     }
/// }
///
/// let mut account = Account { balance: 100, seen: None };
/// let lock = locks.lock("account:7");
/// // A lease that is not renewed stands for a holder that is frozen.
/// let frozen = lock.clone().auto_renew(false).acquire().await?;
/// let of_frozen = account.read(frozen.fence()).expect("nobody was there");
///
/// let next = lock.acquire().await?; // when that lease has ended
/// let of_next = account.read(next.fence()).expect("a larger fence");
/// assert!(!account.write(of_frozen + 10, frozen.fence())); // though nobody has written since
/// assert!(account.write(of_next + 1, next.fence()));
/// assert_eq!(account.balance, 101);
/// # Ok(()) }
/// ```
///
/// [Kleppmann 2016]: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html
#[doc(alias = "token")]
#[doc(alias = "epoch")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(NonZeroU64);

impl Fence {
    /// Returns the token as an integer: non-zero and less than 2⁶³.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// let fence = locks.lock("invoice:42").acquire().await?.fence();
    /// let header = format!("X-Fence: {}", fence.get());
    /// # let _ = header;
    /// # Ok(()) }
    /// ```
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// The least larger fence. The largest one has none, and is returned itself.
    pub(crate) fn next(self) -> Fence {
        self.plus(1)
    }

    /// The fence that is larger by this number, or the same one if there is none.
    pub(crate) fn plus(self, more: u64) -> Fence {
        Fence::new(self.get() + more).unwrap_or(self)
    }

    pub(crate) fn new(number: u64) -> Option<Fence> {
        i64::try_from(number).ok()?;
        NonZeroU64::new(number).map(Fence)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> u64 {
        fence.get()
    }
}

/// For SQL, which has no unsigned integers.
impl From<Fence> for i64 {
    fn from(fence: Fence) -> i64 {
        i64::try_from(fence.get()).unwrap_or(i64::MAX)
    }
}

impl From<Fence> for NonZeroU64 {
    fn from(fence: Fence) -> NonZeroU64 {
        fence.0
    }
}

impl TryFrom<u64> for Fence {
    type Error = Error;

    /// # Errors
    /// [`Invalid`](crate::Error::Invalid) for 0 and for 2⁶³ and more.
    fn try_from(number: u64) -> Result<Fence, Error> {
        Fence::new(number).ok_or_else(|| no_fence(number))
    }
}

/// For SQL, which has no unsigned integers.
impl TryFrom<i64> for Fence {
    type Error = Error;

    /// # Errors
    /// [`Invalid`](crate::Error::Invalid) for what is less than 1.
    fn try_from(number: i64) -> Result<Fence, Error> {
        let fence = u64::try_from(number).ok().and_then(Fence::new);
        fence.ok_or_else(|| no_fence(number))
    }
}

/// Reads what `Display` writes.
impl FromStr for Fence {
    type Err = Error;

    /// # Errors
    /// [`Invalid`](crate::Error::Invalid) for all but an integer from 1 to 2⁶³ - 1.
    fn from_str(text: &str) -> Result<Fence, Error> {
        let fence = text.parse().ok().and_then(Fence::new);
        fence.ok_or_else(|| no_fence(format_args!("{text:?}")))
    }
}

fn no_fence(given: impl fmt::Display) -> Error {
    Invalid::new(format!("fence {given}: must be from 1 to {}", i64::MAX)).into()
}

#[cfg(feature = "serde")]
impl serde::Serialize for Fence {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Fence {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Fence, D::Error> {
        let number = u64::deserialize(deserializer)?;
        Fence::new(number).ok_or_else(|| serde::de::Error::custom("a fence is from 1 to 2^63 - 1"))
    }
}
