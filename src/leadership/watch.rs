//! Watching who leads.

use std::fmt;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{BoxStream, iter, unfold};
use futures_util::{Stream, StreamExt};
use tokio::time::{Instant, sleep_until};

use super::Leadership;
use crate::error::{Error, Result};
use crate::options::{JITTER, check_span};
use crate::status::Holder;
use crate::time::backoff::jitter;

const LEAST: Duration = Duration::from_millis(10);
const MOST: Duration = Duration::from_secs(24 * 60 * 60);

/// A watch of a leadership, from [`Leadership::watch`].
///
/// Servers tell only those that campaign of a change. So the watch asks, with the calls of one
/// [`leader`](Leadership::leader) each time. It asks only while [`changed`](Self::changed) is polled, and
/// dropping it ends it. Between two calls the leader may change several times: the watch reports who leads
/// when it asks.
///
/// The watch is also a `Stream` of what `changed` returns, for those that have `futures-util` or
/// `tokio-stream`. It ends after [`Error::Closed`], and after [`Error::Invalid`] inside a Tokio runtime, but
/// after no other error.
///
/// # Examples
/// ```
/// # #[tokio::main] async fn main() -> fairlock::Result<()> {
/// # let locks = fairlock::LockManager::in_memory();
/// use std::time::Duration;
///
/// let scheduler = locks.leadership("scheduler");
/// let mut watch = scheduler.watch(Duration::from_millis(100));
/// assert!(watch.changed().await?.is_none());
/// let lead = scheduler.campaign().await?;
/// let leader = watch.changed().await?.expect("a leader");
/// assert_eq!(leader.fence, lead.fence());
/// # Ok(()) }
/// ```
#[doc(alias = "observe")]
#[must_use = "a watch does nothing until it is polled"]
pub struct LeaderWatch {
    name: String,
    changes: BoxStream<'static, Result<Option<Holder>>>,
}

impl LeaderWatch {
    pub(super) fn new(leadership: Leadership, every: Duration) -> LeaderWatch {
        let name = leadership.name().to_owned();
        let changes = match check_span("every", every, LEAST, MOST) {
            Err(refused) => iter([Err(refused.into())]).fuse().boxed(),
            Ok(()) => {
                let watching = Watching {
                    leadership,
                    every,
                    due: None,
                    told: None,
                };
                unfold(Some(watching), async |watching| Some(watching?.next().await))
                    .fuse()
                    .boxed()
            }
        };
        LeaderWatch { name, changes }
    }

    /// Waits until another process leads than the one that was told last, or nobody does, and returns the
    /// leader. The first call returns at once. A leader whose label was not known yet is told again with it.
    ///
    /// The [time to live](Holder::ttl) is that of the moment at which the server was asked.
    ///
    /// # Errors
    /// As for [`Leadership::leader`]. An error says that it is not known who leads. The next call goes on,
    /// `every` later at most. [`Error::Invalid`] if `every` is out of its range, and [`Error::Closed`] for
    /// each call after that. [`Error::Invalid`] outside of a Tokio runtime; the next call inside goes on.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the next call goes on with it.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let mut watch = locks.leadership("scheduler").watch(Duration::from_secs(1));
    /// match watch.changed().await? {
    ///     Some(leader) => println!("{} leads", leader.label.as_deref().unwrap_or("a process")),
    ///     None => println!("nobody leads"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn changed(&mut self) -> Result<Option<Holder>> {
        self.changes.next().await.unwrap_or(Err(Error::Closed))
    }
}

impl Stream for LeaderWatch {
    type Item = Result<Option<Holder>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.changes.poll_next_unpin(context)
    }
}

impl fmt::Debug for LeaderWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderWatch")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

struct Watching {
    leadership: Leadership,
    every: Duration,
    /// When to ask next. At once, if `None`.
    due: Option<Instant>,
    /// Who led when it was told last. `None` if nothing has been told.
    told: Option<Option<Holder>>,
}

impl Watching {
    /// The next change, and what goes on after it.
    async fn next(mut self) -> (Result<Option<Holder>>, Option<Watching>) {
        loop {
            // The watch goes on inside of one.
            let runtime = &self.leadership.lock.client().runtime;
            if let Err(outside) = runtime.check() {
                return (Err(outside), Some(self));
            }
            if let Some(due) = self.due {
                runtime.serves(pin!(async { sleep_until(due).await })).await;
            }
            let leader = self.leadership.leader().await;
            self.due = Some(Instant::now() + self.pause(leader.as_ref().ok()));
            match leader {
                Ok(leader) if !self.is_news(leader.as_ref()) => {}
                Ok(leader) => {
                    self.told = Some(leader.clone());
                    return (Ok(leader), Some(self));
                }
                Err(error @ (Error::Closed | Error::Invalid(_))) => return (Err(error), None),
                Err(error) => return (Err(error), Some(self)),
            }
        }
    }

    /// The jitter keeps watches that began together from asking together for ever.
    fn pause(&self, leader: Option<&Option<Holder>>) -> Duration {
        let pause = self.every - jitter(self.every / 4);
        match leader {
            // Nobody publishes the end of a lease.
            Some(Some(leader)) => pause.min(leader.ttl + LEAST + jitter(JITTER)),
            _ => pause,
        }
    }

    fn is_news(&self, leader: Option<&Holder>) -> bool {
        let Some(told) = &self.told else { return true };
        match (told, leader) {
            (Some(told), Some(leader)) => {
                told.fence != leader.fence || (told.label.is_none() && leader.label.is_some())
            }
            (told, leader) => told.is_some() != leader.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fence, LockManager, Owner};

    fn leader(fence: u64, label: Option<&str>) -> Holder {
        Holder {
            label: label.map(str::to_owned),
            owner: Owner::new(),
            fence: Fence::new(fence).unwrap(),
            holds: 1,
            kept: false,
            held_for: Duration::ZERO,
            ttl: Duration::from_secs(1),
        }
    }

    fn told(told: Option<Option<Holder>>) -> Watching {
        Watching {
            leadership: LockManager::in_memory().leadership("a"),
            every: Duration::from_secs(8),
            due: None,
            told,
        }
    }

    #[test]
    fn a_change_is_told_once_and_a_label_when_it_is_known() {
        let first = leader(1, Some("first"));
        assert!(told(None).is_news(None), "the first call says who leads now");
        assert!(told(None).is_news(Some(&first)));
        assert!(told(Some(None)).is_news(Some(&first)));
        assert!(told(Some(Some(first.clone()))).is_news(None));
        assert!(!told(Some(None)).is_news(None));

        let watching = told(Some(Some(first)));
        assert!(watching.is_news(Some(&leader(2, Some("first")))), "another term");
        assert!(!watching.is_news(Some(&leader(1, Some("first")))));
        assert!(
            !watching.is_news(Some(&leader(1, None))),
            "its label was not told this time"
        );
        let nameless = told(Some(Some(leader(1, None))));
        assert!(nameless.is_news(Some(&leader(1, Some("first")))));
        assert!(!nameless.is_news(Some(&leader(1, None))));
    }

    #[test]
    fn a_watch_asks_in_time_and_when_the_lease_ends() {
        let watching = told(None);
        let (every, least) = (watching.every, watching.every * 3 / 4);
        let pauses: Vec<_> = (0..100).map(|_| watching.pause(None)).collect();
        assert!(
            pauses.iter().all(|pause| (least..=every).contains(pause)),
            "{pauses:?}"
        );
        assert!(pauses.iter().any(|pause| *pause != pauses[0]), "they keep step");
        let leader = leader(1, None);
        let pause = watching.pause(Some(&Some(leader.clone())));
        assert!(
            pause > leader.ttl && pause < leader.ttl + LEAST + JITTER,
            "{pause:?}"
        );
    }
}
