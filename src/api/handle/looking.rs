//! Looking at a lock, and freeing it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::{iter, unfold};
use tokio::time::{Instant, sleep_until};

use super::Handle;
use crate::engine::acquire::AcquireParams;
use crate::engine::operator::{Labels, Seen};
use crate::engine::options::{JITTER, check_span};
use crate::time::backoff::jitter;
use crate::types::error::{Error, Result};
use crate::types::fence::Fence;
use crate::types::status::{Holder, LockStream, Status};

const LEAST: Duration = Duration::from_millis(10);
const MOST: Duration = Duration::from_secs(24 * 60 * 60);

impl Handle {
    pub(crate) fn status(&self) -> impl Future<Output = Result<Status>> + Send + use<> {
        self.status_with(Arc::default())
    }

    /// The status of one of several locks, whose holders may be the same clients.
    pub(crate) fn status_with(
        &self,
        labels: Arc<Labels>,
    ) -> impl Future<Output = Result<Status>> + Send + use<> {
        let lock = self.clone();
        async move {
            let AcquireParams { keys, terms, .. } = lock.request()?.hold;
            let asking = pin!(async {
                let began = Instant::now();
                let Seen { mut status, clients } = lock.place().inspect(&keys, &terms).await?;
                let took = began.elapsed();
                let labels = clients
                    .iter()
                    .map(|client| labels.within(took, client, || lock.place().label_of(client)));
                let labels = join_all(labels).await;
                for (holder, label) in status.holders.iter_mut().zip(labels) {
                    holder.label = label;
                }
                status.holder = status.holders.first().cloned();
                Ok(status)
            });
            let seen = lock.client().runtime.serves(asking).await;
            seen.map_err(|error: Error| error.of(&lock.name))
        }
    }

    pub(crate) fn force_release(&self, fence: Fence) -> impl Future<Output = Result<bool>> + Send + use<> {
        let lock = self.clone();
        async move {
            let AcquireParams { keys, terms, .. } = lock.request()?.hold;
            let releasing = pin!(lock.place().force_release(&keys, &terms, fence));
            let released = lock.client().runtime.serves(releasing).await;
            released.map_err(|error| error.of(&lock.name))
        }
    }

    pub(crate) fn watch(&self, every: Duration) -> LockStream<Status> {
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
    lock: Handle,
    every: Duration,
    /// When to ask next. At once, if `None`.
    due: Option<Instant>,
    /// What was reported last. `None` if nothing has been reported.
    told: Option<Status>,
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
            let first = status.as_ref().ok().and_then(|status| status.holder.as_ref());
            self.due = Some(Instant::now() + self.pause(first));
            match status {
                Ok(status) if !self.is_news(&status) => {}
                Ok(status) => {
                    self.told = Some(status.clone());
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

    /// Renewals change the order of several holders, and of many also which ones are listed. Neither is news.
    fn is_news(&self, status: &Status) -> bool {
        let Some(told) = &self.told else { return true };
        let all_are_listed = told.lists_all_holders() && status.lists_all_holders();
        (told.permits_in_use, told.readers) != (status.permits_in_use, status.readers)
            || told.holders.len() != status.holders.len()
            || status.holders.iter().any(|holder| {
                let told = told.holders.iter().find(|told| told.fence == holder.fence);
                told.map_or(all_are_listed, |told| {
                    (told.permits, told.writes) != (holder.permits, holder.writes)
                        || (told.label.is_none() && holder.label.is_some())
                })
            })
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
            retains: false,
            permits: 1,
            capacity: Some(9),
            slot: None,
            writes: false,
            held_for: Duration::ZERO,
            ttl: Duration::from_secs(1),
        }
    }

    /// A status that lists these holders, beside others that have so many permits.
    fn among(holders: &[Holder], others: u64) -> Status {
        let listed = holders.iter().map(|holder| u64::from(holder.permits));
        Status {
            holder: holders.first().cloned(),
            holders: holders.to_vec(),
            permits_in_use: others + listed.sum::<u64>(),
            capacity: Some(9),
            readers: 0,
            writer: false,
            waiting: 0,
            longest_wait: None,
        }
    }

    fn of(holders: &[Holder]) -> Status {
        among(holders, 0)
    }

    fn told(told: Option<&[Holder]>) -> Watching {
        Watching {
            lock: LockManager::in_memory().lock("a").0,
            every: Duration::from_secs(8),
            due: None,
            told: told.map(of),
        }
    }

    #[test]
    fn a_change_is_told_once_and_a_label_when_it_is_known() {
        let first = [holder(1, Some("first"))];
        assert!(
            told(None).is_news(&of(&[])),
            "the first call says who holds it now"
        );
        assert!(told(None).is_news(&of(&first)));
        assert!(told(Some(&[])).is_news(&of(&first)));
        assert!(told(Some(&first)).is_news(&of(&[])));
        assert!(!told(Some(&[])).is_news(&of(&[])));

        let watching = told(Some(&first));
        assert!(watching.is_news(&of(&[holder(2, Some("first"))])), "another hold");
        assert!(!watching.is_news(&of(&first)));
        assert!(
            !watching.is_news(&of(&[holder(1, None)])),
            "its label was not told this time"
        );
        let nameless = told(Some(&[holder(1, None)]));
        assert!(nameless.is_news(&of(&first)));
        assert!(!nameless.is_news(&of(&[holder(1, None)])));
    }

    #[test]
    fn of_several_holders_each_change_is_told_and_their_order_is_none() {
        let both = [holder(1, None), holder(2, None)];
        let watching = told(Some(&both));
        assert!(!watching.is_news(&of(&[holder(2, None), holder(1, None)])));
        assert!(watching.is_news(&of(&both[..1])));
        assert!(watching.is_news(&of(&[holder(1, None), holder(3, None)])));
        let shrunk = Holder {
            permits: 2,
            ..holder(2, None)
        };
        assert!(watching.is_news(&of(&[holder(1, None), shrunk])));
    }

    #[test]
    fn of_more_holders_than_are_listed_it_is_no_news_which_ones_are() {
        let [one, two, three] = [1, 2, 3].map(|fence| holder(fence, None));
        let mut watching = told(None);
        watching.told = Some(among(&[one.clone(), two.clone()], 5));
        assert!(!watching.is_news(&among(&[three.clone(), one.clone()], 5)));
        assert!(
            watching.is_news(&among(&[three.clone(), one.clone()], 6)),
            "one more"
        );
        assert!(watching.is_news(&of(&[three, one.clone()])), "fewer");
        let shrunk = Holder { permits: 2, ..one };
        assert!(watching.is_news(&among(&[shrunk, two], 4)));
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
