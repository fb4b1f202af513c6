//! The release of a hold of a majority.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::Votes;
use crate::engine::counters::Holding;
use crate::engine::hold::owned::OwnedHold;
use crate::error::{Error, Lost, Result};
use crate::quorum::answers::{Answers, next_until, stragglers_until};
use crate::sync::locked;
use crate::time::clock::LocalTime;

impl Votes {
    /// Ends the hold and takes all votes, for their release. Their servers give one fence to the next
    /// request, larger than those of all turns. They keep the lock taken for as long as the terms say, unless
    /// the hold was lost.
    pub(in crate::quorum) fn end_to_release(&self) -> (Result<(), Lost>, Option<Holding>, Vec<OwnedHold>) {
        let (before, holding, votes) = self.end();
        let state = locked(&self.state);
        let kept_from = state.kept_until.and(state.decided);
        drop(state);
        for vote in &votes {
            if let Some((decided, _)) = kept_from {
                vote.hold().mark_used_since(decided);
            }
            if let Some(turns) = self.turns() {
                vote.hold().end_turns(turns.fence());
            }
        }
        (before, holding, votes)
    }

    /// Until when the lock stays taken, since a release has said so.
    pub(in crate::quorum) fn kept_until(&self) -> Option<LocalTime> {
        locked(&self.state).kept_until
    }

    /// Releases all votes, and returns when a majority of the servers have confirmed it. If the votes that
    /// are left are no majority, it does not wait for servers that are much slower. The background tasks do
    /// what is left, also if this is dropped midway.
    ///
    /// Fails with `Lost` if so many servers had lost their votes before that others could hold the lock.
    pub(in crate::quorum) async fn release(&self) -> Result<()> {
        let (before, holding, votes) = self.end_to_release();
        let mut over = holding.map(|holding| holding.over(&self.quorum.counters, self.quorum.clock().now()));
        let released = self.release_votes(before, votes).await;
        if let Some(over) = &mut over {
            over.released(&released);
        }
        released
    }

    async fn release_votes(&self, before: Result<(), Lost>, votes: Vec<OwnedHold>) -> Result<()> {
        let (held, majority) = (votes.len(), self.quorum.majority());
        let mut releases: FuturesUnordered<_> = votes.into_iter().map(OwnedHold::release).collect();
        let mut answers = Answers::of(&self.quorum);
        let (mut lost, mut reason) = (0, None);
        // Without these votes, the others are no majority.
        let is_free = |gone: usize| held - gone < majority;
        let began = Instant::now();
        let mut until = None;
        while let Some(released) = next_until(&mut releases, until).await {
            match released {
                Ok(()) => answers.add(()),
                Err(Error::Lost(why)) => (lost, reason) = (lost + 1, Some(why)),
                Err(error) => answers.fail(error),
            }
            if answers.are_majority() {
                break;
            }
            if is_free(answers.so_far().len() + lost) {
                until.get_or_insert_with(|| stragglers_until(began));
            }
        }
        // If these were dropped, the background tasks would send the releases once more.
        self.quorum
            .client()
            .spawn(async move { while releases.next().await.is_some() {} });
        before?;
        match reason {
            Some(reason) if held - lost < majority => Err(reason.into()),
            _ if is_free(answers.so_far().len() + lost) => Ok(()),
            _ => answers.of_majority().map(drop),
        }
    }
}
