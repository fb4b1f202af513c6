//! Watching who holds a lock.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{iter, unfold};
use tokio::time::{Instant, sleep_until};

use super::Lock;
use crate::error::{Error, Result};
use crate::options::{JITTER, check_span};
use crate::status::{Holder, LockStream, Status};
use crate::time::backoff::jitter;

const LEAST: Duration = Duration::from_millis(10);
const MOST: Duration = Duration::from_secs(24 * 60 * 60);

impl Lock {
    /// Watches who holds the lock: tells its status now, and whenever it has another holder or none. Asks
    /// every `every` (10 ms to 1 day), less up to a quarter of jitter, and when the lease of the holder ends.
    ///
    /// Servers tell only those that wait for the lock of a change. So the watch asks, with the calls of one
    /// [`status`](Self::status) each time. It asks only while it is polled, and dropping it ends it. Between
    /// two calls the holder may change several times: the watch tells who it is when it asks. A label that
    /// was not known is told when it is.
    ///
    /// # Errors
    /// An item is an error as of [`status`](Self::status), or [`Error::Invalid`] for an interval out of its
    /// range. The watch ends after [`Error::Closed`] and [`Error::Invalid`], but after no other error.
    ///
    /// # Cancel safety
    /// Dropping the stream, or a future that waits for its next item, changes nothing.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main] async fn main() -> fairlock::Result<()> {
    /// # let locks = fairlock::LockManager::in_memory();
    /// use std::time::Duration;
    ///
    /// let mut watch = locks.lock("scheduler").watch(Duration::from_millis(100));
    /// let lead = locks.leadership("scheduler").campaign().await?;
    /// while let Some(status) = watch.next().await {
    ///     if let Some(leader) = status?.holder {
    ///         assert_eq!(leader.fence, lead.fence());
    ///         break;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    #[doc(alias = "observe")]
    #[doc(alias = "subscribe")]
    pub fn watch(&self, every: Duration) -> LockStream<Status> {
        LockStream::of(match check_span("every", every, LEAST, MOST) {
            Err(refused) => iter([Err(refused.into())]).fuse().boxed(),
            Ok(()) => {
                let watching = Watching {
                    lock: self.clone(),
                    every,
                    due: None,
                    told: None,
                };
                unfold(Some(watching), async |watching| Some(watching?.next().await))
                    .fuse()
                    .boxed()
            }
        })
    }
}

struct Watching {
    lock: Lock,
    every: Duration,
    /// When to ask next. At once, if `None`.
    due: Option<Instant>,
    /// Who led when it was told last. `None` if nothing has been told.
    told: Option<Option<Holder>>,
}

impl Watching {
    /// The next change, and what goes on after it.
    async fn next(mut self) -> (Result<Status>, Option<Watching>) {
        loop {
            let runtime = &self.lock.client().runtime;
            if let Some(due) = self.due {
                runtime.serves(pin!(async { sleep_until(due).await })).await;
            }
            let status = self.lock.status().await;
            let holder = status.as_ref().ok().and_then(|status| status.holder.as_ref());
            self.due = Some(Instant::now() + self.pause(holder));
            match status {
                Ok(status) if !self.is_news(status.holder.as_ref()) => {}
                Ok(status) => {
                    self.told = Some(status.holder.clone());
                    return (Ok(status), Some(self));
                }
                Err(error @ (Error::Closed | Error::Invalid(_))) => return (Err(error), None),
                Err(error) => return (Err(error), Some(self)),
            }
        }
    }

    /// The jitter keeps watches that began together from asking together for ever.
    fn pause(&self, holder: Option<&Holder>) -> Duration {
        let pause = self.every - jitter(self.every / 4);
        match holder {
            // Nobody publishes the end of a lease.
            Some(holder) => pause.min(holder.ttl + LEAST + jitter(JITTER)),
            None => pause,
        }
    }

    fn is_news(&self, holder: Option<&Holder>) -> bool {
        let Some(told) = &self.told else { return true };
        match (told, holder) {
            (Some(told), Some(holder)) => {
                told.fence != holder.fence || (told.label.is_none() && holder.label.is_some())
            }
            (told, holder) => told.is_some() != holder.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fence, LockManager, Owner};

    fn holder(fence: u64, label: Option<&str>) -> Holder {
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
            lock: LockManager::in_memory().lock("a"),
            every: Duration::from_secs(8),
            due: None,
            told,
        }
    }

    #[test]
    fn a_change_is_told_once_and_a_label_when_it_is_known() {
        let first = holder(1, Some("first"));
        assert!(told(None).is_news(None), "the first call says who holds it now");
        assert!(told(None).is_news(Some(&first)));
        assert!(told(Some(None)).is_news(Some(&first)));
        assert!(told(Some(Some(first.clone()))).is_news(None));
        assert!(!told(Some(None)).is_news(None));

        let watching = told(Some(Some(first)));
        assert!(watching.is_news(Some(&holder(2, Some("first")))), "another hold");
        assert!(!watching.is_news(Some(&holder(1, Some("first")))));
        assert!(
            !watching.is_news(Some(&holder(1, None))),
            "its label was not told this time"
        );
        let nameless = told(Some(Some(holder(1, None))));
        assert!(nameless.is_news(Some(&holder(1, Some("first")))));
        assert!(!nameless.is_news(Some(&holder(1, None))));
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
        let holder = holder(1, None);
        let pause = watching.pause(Some(&holder));
        assert!(
            pause > holder.ttl && pause < holder.ttl + LEAST + JITTER,
            "{pause:?}"
        );
    }
}
