//! Owners: on whose behalf a lock is held.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// The owner of a hold. Two acquisitions by the same owner do not exclude each other: the lock is re-entrant
/// for it.
///
/// Without one, each acquisition is an owner of its own. Give the same `Owner` only to code that runs one
/// after the other: **one `Owner` in two tasks excludes nothing between them.**
///
/// An owner may hold a lock 256 times at once. The next acquisition fails with
/// [`Error::TooManyHolds`](crate::Error::TooManyHolds). Each hold has a lease of its own, and makes every
/// call for that lock slower, by some 1 µs of the server's time.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::Owner;
///
/// let job = Owner::named("job:7"); // another process can go on under the same name
/// let lock = locks.lock("tree").owner(&job);
/// let outer = lock.acquire().await?;
/// let inner = lock.acquire().await?;
/// assert_eq!(inner.owner().as_str(), job.as_str());
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(Arc<str>);

impl Owner {
    /// How many hexadecimal digits a user-given owner has on the server.
    pub(crate) const LEN: usize = 32;
    /// No id is longer, also of a guard that is its own owner.
    #[cfg(feature = "serde")]
    const LONGEST: usize = 128;

    /// Creates a new owner, unlike any other (128 random bits).
    ///
    /// # Examples
    /// ```
    /// use fairlock::Owner;
    ///
    /// assert_ne!(Owner::new(), Owner::new());
    /// ```
    pub fn new() -> Owner {
        Owner(Uuid::new_v4().simple().to_string().into())
    }

    /// Returns the owner of that name. It is the same one in every process that uses the name.
    ///
    /// The name is hashed to 128 bits (UUID version 5 of RFC 9562, in the OID name space). Any length is
    /// allowed, and the server never sees the name.
    ///
    /// # Examples
    /// ```
    /// use fairlock::Owner;
    ///
    /// assert_eq!(Owner::named("job:7"), Owner::named("job:7"));
    /// assert_ne!(Owner::named("job:7"), Owner::named("job:8"));
    /// ```
    pub fn named(name: impl AsRef<str>) -> Owner {
        Owner(
            Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_ref().as_bytes())
                .simple()
                .to_string()
                .into(),
        )
    }

    /// Returns the id by which the server knows this owner.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn from_wire(id: &str) -> Owner {
        Owner(id.into())
    }
}

impl Default for Owner {
    fn default() -> Owner {
        Owner::new()
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.0)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Owner {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Owner {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Owner, D::Error> {
        let id = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
        let is_one =
            (Owner::LEN..=Owner::LONGEST).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
        is_one
            .then(|| Owner(id.into()))
            .ok_or_else(|| serde::de::Error::custom("an owner is an id that `Owner::as_str` has returned"))
    }
}
