//! A lock as an operator sees it.

use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};

use crate::types::error::{Error, Invalid, Result};
use crate::types::fence::Fence;
use crate::types::owner::Owner;

/// A lock at one moment, as the server sees it, or a majority of the servers of a quorum.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let lock = locks.lock("invoice:42");
/// let guard = lock.acquire().await?;
/// let status = lock.status().await?;
/// assert_eq!(status.holder.map(|holder| holder.fence), Some(guard.fence()));
/// assert_eq!((status.waiting, status.longest_wait), (0, None));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Status {
    /// The holder, if there is one. Of several holders it is the one whose hold ends first.
    pub holder: Option<Holder>,
    /// All holders. A lock has one at most, and so has a read/write lock that a writer has. Of a semaphore
    /// and of readers these are up to 100, in the order in which their holds end.
    pub holders: Vec<Holder>,
    /// The number of permits of a semaphore that are in use. 0 for others.
    pub permits_in_use: u64,
    /// The capacity of a semaphore, as the newest of the listed holders gave it. `None` for others, and while
    /// no permit is in use.
    pub capacity: Option<u32>,
    /// The number of readers of a read/write lock.
    pub readers: u64,
    /// Whether a writer has a read/write lock. It is the [`holder`](Self::holder) then.
    pub writer: bool,
    /// The number of requests in the server's queue. Under overload, a client does not queue all of its
    /// callers; [`Stats::waiting`](crate::Stats::waiting) counts all of one client. With [local
    /// hand-off](crate::Lock::local_handoffs), a process counts once. In a quorum it is the largest number of
    /// a server, and counts a request with too few votes where it is queued.
    pub waiting: u64,
    /// For how long the first request in the server's queue has waited, by the server's clock. Nobody in that
    /// queue has waited for longer. `None` if it is empty. Too small if the clock was set back. In a quorum
    /// it is the longest of a server.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "longest_wait_ms", with = "crate::types::status::in_ms::option")
    )]
    pub longest_wait: Option<Duration>,
}

impl Status {
    /// Whether nobody holds the lock beside those that are listed.
    pub(crate) fn lists_all_holders(&self) -> bool {
        let permits = self.holders.iter().map(|holder| u64::from(holder.permits));
        let listed = self.holders.len() as u64;
        permits.sum::<u64>() >= self.permits_in_use && listed >= self.readers
    }
}

/// The holder of a lock.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::Owner;
///
/// let lock = locks.lock("invoice:42").owner(&Owner::named("job:7"));
/// let guard = lock.acquire().await?;
/// if let Some(holder) = lock.status().await?.holder {
///     assert_eq!((&holder.owner, holder.fence), (&Owner::named("job:7"), guard.fence()));
///     println!("held by {:?} for {:?}, and for another {:?}", holder.label, holder.held_for, holder.ttl);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Holder {
    /// The label of the client that holds the lock, by default its host and process
    /// ([`LockManagerBuilder::label`](crate::LockManagerBuilder::label)). `None` if that client has not been
    /// heard of for a minute, if the server has recently lost its data or has something else in place of the
    /// label, or if it did not answer the call for the label in time.
    pub label: Option<String>,
    /// The owner, equal to [`LockGuard::owner`](crate::LockGuard::owner) of the guards that hold the lock. In
    /// a quorum it is an owner of that one guard.
    pub owner: Owner,
    /// The fencing token, for [`Lock::force_release`](crate::Lock::force_release). In a quorum it is that of
    /// a majority of the servers; while they do not agree on one yet, it is the smallest.
    pub fence: Fence,
    /// The number of this owner's guards that hold the lock. In a quorum it is 1.
    pub holds: u64,
    /// For how long this owner has held the lock, by the server's clock. The time begins with its first hold,
    /// also if that one was released since. It is too small if the clock was set back, and by 2 ms if the
    /// server did not know the lock. In a quorum it counts from the release that handed the lock over.
    /// Without one, it counts from the call that found the lock free.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "held_for_ms", with = "crate::types::status::in_ms")
    )]
    pub held_for: Duration,
    /// The time until the latest lease of these guards ends, unless it is renewed. A lock that was just
    /// handed over shows its [claim window](crate::LockManagerBuilder::claim_window). In a quorum, the time
    /// until fewer leases than a majority are left.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "ttl_ms", with = "crate::types::status::in_ms")
    )]
    pub ttl: Duration,
    /// Whether the lock was released, and stays taken until `ttl` has passed
    /// ([`at_least`](crate::Lock::at_least)). It then has an owner of its own. Label and fence are those of
    /// the guard that released it.
    pub kept: bool,
    /// Whether its client may [retain](crate::Lock::retain) the lock. Then it may have the lock without a
    /// guard; no server knows that.
    pub retains: bool,
    /// How many permits of a semaphore this holder has. 1 for others.
    pub permits: u32,
    /// The capacity that this holder gave for its semaphore. `None` for others.
    pub capacity: Option<u32>,
    /// The slot, if its guard has [one](crate::SemaphoreGuard::slot).
    pub slot: Option<u32>,
    /// Whether it is the writer of a read/write lock.
    pub writes: bool,
}

/// A rate limit at one moment, as the server sees it.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use std::time::Duration;
///
/// let mail = locks.rate_limit("mail", 2, Duration::from_secs(60)).burst(1);
/// mail.acquire().await?;
/// assert_eq!(mail.status().await?.available, 1);
/// mail.acquire().await?;
/// let status = mail.status().await?;
/// assert_eq!((status.available, status.waiting), (0, 0));
/// println!("the next call may begin in {:?}", status.next_turn);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RateStatus {
    /// How many calls that take one turn may begin now, if nobody waits: at most one and the
    /// [burst](crate::RateLimit::burst).
    pub available: u64,
    /// How long it takes until a call of this [cost](crate::RateLimit::cost) may begin, if nobody waits, in
    /// whole ms. Zero if it may begin now.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "next_turn_ms", with = "crate::types::status::in_ms")
    )]
    pub next_turn: Duration,
    /// How many clients wait for turns, by the server's queue. Each counts once for each rate that its
    /// callers name. [`Stats::waiting`](crate::Stats::waiting) counts the callers of one client.
    pub waiting: u64,
}

/// What a name is used for. A lock, a semaphore and a read/write lock of the same name share nothing.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use fairlock::Kind;
///
/// let _guard = locks.lock("invoice:42").acquire().await?;
/// let kind = locks.list_all("*").await?[0].kind;
/// assert_eq!((kind, kind.to_string().parse()?), (Kind::Lock, Kind::Lock));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum Kind {
    /// One guard at a time: [`LockManager::lock`](crate::LockManager::lock).
    Lock,
    /// Several permits.
    Semaphore,
    /// Several readers, or one writer.
    ReadWrite,
}

/// The same word as in JSON: `lock`, `semaphore` or `read_write`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Lock => "lock",
            Kind::Semaphore => "semaphore",
            Kind::ReadWrite => "read_write",
        })
    }
}

/// Reads what `Display` writes.
impl FromStr for Kind {
    type Err = Error;

    /// # Errors
    /// [`Invalid`](crate::Error::Invalid) for any other word.
    fn from_str(word: &str) -> Result<Kind> {
        let kinds = [Kind::Lock, Kind::Semaphore, Kind::ReadWrite];
        let named = kinds.into_iter().find(|kind| kind.to_string() == word);
        named.ok_or_else(|| {
            Invalid::new(format!("kind {word:?}: must be lock, semaphore or read_write")).into()
        })
    }
}

/// A lock in the list of [`LockManager::list`](crate::LockManager::list).
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let _guard = locks.lock("invoice:42").acquire().await?;
/// let listed = locks.list_all("invoice:*").await?;
/// assert_eq!(listed[0].name, "invoice:42");
/// assert_eq!(listed[0].status.waiting, 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Listed {
    /// The name of the lock.
    pub name: String,
    /// What the name is used for here.
    pub kind: Kind,
    /// Its holder, and how many requests wait for it.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub status: Status,
}

/// A stream of what is known of locks: from [`Lock::watch`](crate::Lock::watch) and
/// [`LockManager::list`](crate::LockManager::list).
///
/// It is a `Stream` for those that have `futures-util` or `tokio-stream`; [`next`](Self::next) is for all
/// others.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// let mut all = locks.list("*");
/// while let Some(lock) = all.next().await {
///     println!("{}", lock?.name);
/// }
/// # Ok(()) }
/// ```
#[must_use = "a stream does nothing until it is polled"]
pub struct LockStream<T>(Mutex<BoxStream<'static, Result<T>>>);

impl<T> LockStream<T> {
    pub(crate) fn of(stream: BoxStream<'static, Result<T>>) -> LockStream<T> {
        // Never locked: it only makes the stream `Sync`.
        LockStream(Mutex::new(stream))
    }

    fn stream(&mut self) -> &mut BoxStream<'static, Result<T>> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next item, or `None` at the end.
    ///
    /// # Cancel safety
    /// Dropping the future loses no item.
    pub async fn next(&mut self) -> Option<Result<T>> {
        self.stream().next().await
    }
}

impl<T> Stream for LockStream<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.stream().poll_next_unpin(context)
    }
}

impl<T> fmt::Debug for LockStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockStream").finish_non_exhaustive()
    }
}

/// Durations as whole milliseconds.
#[cfg(feature = "serde")]
pub(crate) mod in_ms {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    fn millis(span: Duration) -> u64 {
        u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        millis(*span).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }

    pub(crate) mod option {
        use super::{Deserialize, Deserializer, Duration, Serialize, Serializer, millis};

        #[allow(clippy::ref_option)] // As serde calls it.
        pub(crate) fn serialize<S: Serializer>(
            span: &Option<Duration>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            span.map(millis).serialize(serializer)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "serde")]
    use super::*;

    #[cfg(feature = "serde")]
    #[test]
    fn a_listed_lock_is_serialized_as_the_command_line_shows_it() {
        let holder = Holder {
            label: None,
            owner: Owner::named("job:7"),
            fence: Fence::new(7).unwrap(),
            holds: 1,
            held_for: Duration::from_micros(1999),
            ttl: Duration::from_secs(2),
            kept: false,
            retains: true,
            permits: 1,
            capacity: None,
            slot: None,
            writes: true,
        };
        let listed = Listed {
            name: "a".to_owned(),
            kind: Kind::ReadWrite,
            status: Status {
                holders: vec![holder.clone()],
                holder: Some(holder),
                permits_in_use: 0,
                capacity: None,
                readers: 0,
                writer: true,
                waiting: 3,
                longest_wait: Some(Duration::from_millis(5)),
            },
        };
        let holder = serde_json::json!({
            "label": null, "owner": Owner::named("job:7").as_str(), "fence": 7, "holds": 1,
            "held_for_ms": 1, "ttl_ms": 2000, "kept": false, "retains": true,
            "permits": 1, "capacity": null, "slot": null, "writes": true,
        });
        let shown = serde_json::json!({
            "name": "a", "kind": "read_write", "waiting": 3, "longest_wait_ms": 5,
            "holder": holder, "holders": [holder], "permits_in_use": 0, "capacity": null,
            "readers": 0, "writer": true,
        });
        assert_eq!(serde_json::to_value(&listed).unwrap(), shown);
        let text = shown.to_string();
        let read: Listed = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), shown);
    }
}
