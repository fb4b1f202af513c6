//! Local hand-off in a quorum: its holds are tenures of [local queues](crate::engine::local_queue).
//!
//! All requests of a ballot reserve the fences of all turns, at each server. When the hold ends, the release
//! of each vote tells the last one that was used. A vote that ends in any other way may have used all of
//! them: it ran out, it was taken by force, or it was lost while the others were still a majority. So the
//! majorities of two holds have a server in common whose next fence is larger than those of all turns.

use std::sync::Arc;
use std::time::Duration;

use super::{Majority, Quorum, Votes, Wanted};
use crate::engine::acquire::{AcquireParams, Tried};
use crate::engine::client::Client;
use crate::engine::counters::Counters;
use crate::engine::local_queue::registry::LocalQueues;
use crate::engine::local_queue::source::{Source, Tenure};
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::time::clock::LocalTime;

impl Source for Quorum {
    type Tenure = Majority;

    fn local_queues(&self) -> &LocalQueues<Quorum> {
        &self.local_queues
    }

    fn client(&self) -> &Arc<Client> {
        self.client()
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn admit(&self) -> Result<impl Send> {
        self.count_caller()
    }

    async fn acquire(self: &Arc<Self>, params: &AcquireParams) -> Result<Majority> {
        self.acquire_uncounted(Wanted::of(params.clone(), None)).await
    }

    async fn try_acquire(self: &Arc<Self>, params: AcquireParams) -> Result<Tried<Majority>> {
        self.try_acquire(Wanted::of(params, None)).await
    }

    fn free_in(&self, channel: &str) -> Duration {
        self.retry_after(channel)
    }

    fn timed_out(&self, params: &AcquireParams, began: LocalTime) -> Error {
        self.over(&params.keys, &params.channel, began)
    }
}

impl Tenure for Majority {
    type Hold = Votes;

    fn hold(&self) -> &Arc<Votes> {
        self.votes()
    }

    fn fence(&self) -> Fence {
        self.fence
    }
}
