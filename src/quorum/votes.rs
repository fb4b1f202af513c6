//! A hold of a majority: the holds of its servers, what they are together, and how they end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::QuorumClient;
use super::answers::{Answers, next_until, stragglers_until};
use crate::engine::any_hold::{AnyHold, Watched};
use crate::engine::client::Client;
use crate::engine::counters::{Counters, GuardEnd, Holding, How};
use crate::engine::floor::NextFloor;
use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::protocol::RESERVED;
use crate::sync::locked;
use crate::time::clock::LocalTime;
use crate::time::deadline::LeaseTerms;
use crate::types::error::{Error, HoldEnd, Lost, Result};
use crate::types::fence::Fence;
use crate::types::lease::{Lease, LeaseState};
use crate::types::owner::Owner;

/// The votes of one request. They are a hold as long as the leases of a majority last.
#[derive(Debug)]
pub(crate) struct Votes {
    pub(crate) name: Arc<str>,
    /// The owner of the holds, of this client alone.
    pub(crate) owner: Owner,
    terms: LeaseTerms,
    quorum: Arc<QuorumClient>,
    state: Mutex<State>,
    changed: Notify,
    /// The least fence of the next holder.
    pub(super) next_floor: Arc<NextFloor>,
}

#[derive(Debug)]
struct State {
    /// By server.
    votes: Vec<Vote>,
    /// When the votes became a hold, and under which fence.
    decided: Option<(LocalTime, Fence)>,
    /// The last fence that turns have used, if there were several.
    last_turn: Option<Fence>,
    /// Why the hold ended. It never comes back.
    over: Option<HoldEnd>,
    /// What its guard holds, until the hold ends.
    holding: Option<Holding>,
}

impl State {
    /// The fence of the hold, or of its last turn. `None` if the votes are no hold yet.
    fn fence(&self) -> Option<Fence> {
        self.last_turn.or_else(|| Some(self.decided?.1))
    }
}

#[derive(Debug)]
enum Vote {
    Held(OwnedHold),
    /// There is none, or no more for this reason.
    Missing(Option<HoldEnd>),
}

impl Vote {
    fn hold(&self) -> Option<&Arc<Hold>> {
        match self {
            Vote::Held(vote) => Some(vote.hold()),
            Vote::Missing(_) => None,
        }
    }

    /// The hold, if its lease lasts. A vote whose lease has ended may still be here, but does not count.
    fn live(&self) -> Option<&Arc<Hold>> {
        self.hold().filter(|hold| hold.check().is_ok())
    }

    /// The vote, if there is one. It is missing from now on, for this reason unless it was lost before.
    fn take(&mut self, why: Option<HoldEnd>) -> Option<OwnedHold> {
        self.hold()?;
        let why = self.why_lost().or(why);
        match std::mem::replace(self, Vote::Missing(why)) {
            Vote::Held(vote) => Some(vote),
            Vote::Missing(_) => None,
        }
    }

    fn why_lost(&self) -> Option<HoldEnd> {
        match self {
            Vote::Held(vote) => vote.hold().check().err().map(|lost| lost.reason),
            Vote::Missing(why) => *why,
        }
    }
}

impl Votes {
    pub(super) fn new(quorum: &Arc<QuorumClient>, name: &Arc<str>, owner: Owner, terms: LeaseTerms) -> Votes {
        let mut votes = Vec::new();
        votes.resize_with(quorum.servers.len(), || Vote::Missing(None));
        Votes {
            name: Arc::clone(name),
            owner,
            terms,
            quorum: Arc::clone(quorum),
            state: Mutex::new(State {
                votes,
                decided: None,
                last_turn: None,
                over: None,
                holding: None,
            }),
            changed: Notify::new(),
            next_floor: Arc::default(),
        }
    }

    /// Counts a vote from now on. There was none of this server.
    pub(super) fn put(&self, server: usize, vote: OwnedHold) {
        locked(&self.state).votes[server] = Vote::Held(vote);
        self.changed.notify_waiters();
    }

    /// Stops counting a vote.
    pub(super) fn take(&self, server: usize) -> Option<OwnedHold> {
        let vote = locked(&self.state).votes[server].take(None);
        self.changed.notify_waiters();
        vote
    }

    /// The holds that count as votes, with the numbers of their servers.
    pub(super) fn holds(&self) -> Vec<(usize, Arc<Hold>)> {
        let state = locked(&self.state);
        let votes = state.votes.iter().enumerate();
        votes
            .filter_map(|(server, vote)| Some((server, Arc::clone(vote.hold()?))))
            .collect()
    }

    /// The servers whose votes are missing. A server that took its vote away is not among them: a lock that
    /// was taken by force must not come back.
    pub(super) fn missing(&self) -> Vec<usize> {
        let state = locked(&self.state);
        let votes = state.votes.iter().enumerate();
        votes
            .filter(|(_, vote)| match vote {
                Vote::Held(_) => false,
                Vote::Missing(why) => *why != Some(HoldEnd::Taken),
            })
            .map(|(server, _)| server)
            .collect()
    }

    /// Whether this hold counts as the vote of this server.
    pub(super) fn counts(&self, server: usize, hold: &Arc<Hold>) -> bool {
        let state = locked(&self.state);
        (state.votes[server].hold()).is_some_and(|vote| Arc::ptr_eq(vote, hold))
    }

    /// How many votes there are.
    pub(crate) fn count(&self) -> usize {
        let state = locked(&self.state);
        state.votes.iter().filter_map(Vote::hold).count()
    }

    pub(super) fn are_too_few(&self) -> bool {
        self.count() < self.quorum.majority()
    }

    /// The fence that a majority of the votes have, if they agree on one.
    pub(super) fn agreed(&self) -> Option<Fence> {
        let state = locked(&self.state);
        let live = state.votes.iter().filter_map(Vote::live);
        let fences: Vec<_> = live.map(|hold| hold.fence()).collect();
        let has_majority =
            |fence: &Fence| fences.iter().filter(|other| *other == fence).count() >= self.quorum.majority();
        fences.iter().copied().find(has_majority)
    }

    /// How a majority of the grants came.
    fn how(&self) -> How {
        let state = locked(&self.state);
        let came = |how| {
            let holds = state.votes.iter().filter_map(Vote::hold);
            holds.filter(|hold| hold.how() == how).count() >= self.quorum.majority()
        };
        let mut hows = [How::HandedOver, How::Free].into_iter();
        hows.find(|how| came(*how)).unwrap_or(How::Polled)
    }

    /// The votes are a hold from now on, under this fence.
    fn begin_hold(&self, fence: Fence) {
        self.next_floor.begin_hold(fence);
        locked(&self.state).decided = Some((self.quorum.clock().now(), fence));
    }

    /// When the votes became a hold, or now if they are none yet.
    pub(super) fn decided(&self) -> LocalTime {
        let decided = locked(&self.state).decided;
        decided.map_or_else(|| self.quorum.clock().now(), |(at, _)| at)
    }

    /// The fence of the hold, or of its present turn. `None` if the votes are no hold yet.
    pub(super) fn fence(&self) -> Option<Fence> {
        locked(&self.state).fence()
    }

    /// When the hold ends, by the local clock: at the deadline of the last vote that a majority needs.
    fn deadline(&self, state: &State) -> LocalTime {
        let live = state.votes.iter().filter_map(Vote::live);
        let mut deadlines: Vec<_> = live.map(|hold| hold.deadline()).collect();
        deadlines.sort_unstable();
        let last = deadlines.len().checked_sub(self.quorum.majority());
        last.map_or(LocalTime::ZERO, |last| deadlines[last])
    }

    /// Why the hold ended.
    fn reason(&self, state: &State) -> HoldEnd {
        let reasons: Vec<_> = state.votes.iter().filter_map(Vote::why_lost).collect();
        let lost_by = |reason| reasons.iter().filter(|other| **other == reason).count();
        let live = state.votes.iter().filter_map(Vote::live).count();
        // Without what was taken away, there would be enough.
        if live + lost_by(HoldEnd::Taken) >= self.quorum.majority() {
            HoldEnd::Taken
        } else if lost_by(HoldEnd::MaxHold) > 0 && self.terms.ends_by_max_hold() {
            HoldEnd::MaxHold
        } else {
            HoldEnd::Expired
        }
    }

    /// Ends the hold if too few leases last, by the local clock. Returns until when enough of them do.
    ///
    /// Any caller that finds the hold over ends it. If only the keeper did, a vote that is renewed before the
    /// keeper looks would bring back a hold that a caller has already seen lost.
    pub(crate) fn end_if_over(&self) -> Result<LocalTime, Lost> {
        let mut state = locked(&self.state);
        if let Some(reason) = state.over {
            return Err(self.lost_by(reason));
        }
        let deadline = self.deadline(&state);
        if self.quorum.clock().now() < deadline {
            return Ok(deadline);
        }
        let reason = self.reason(&state);
        state.over = Some(reason);
        if let Some(holding) = state.holding.take() {
            holding.ended(&self.quorum.counters, GuardEnd::Lost(reason));
        }
        tracing::warn!(lock.name = %self.name, ?reason, "too few leases are left: lock lost");
        Err(self.lost_by(reason))
    }

    fn lost_by(&self, reason: HoldEnd) -> Lost {
        Lost::new(Arc::clone(&self.name), reason)
    }

    /// One of the clients.
    pub(crate) fn client(&self) -> &Arc<Client> {
        self.quorum.client()
    }

    /// Whether the leases of a majority are in no doubt.
    fn is_sure(&self, state: &State) -> bool {
        let leases = state.votes.iter().filter_map(Vote::hold).map(|hold| hold.lease());
        let sure = leases.filter(|lease| lease.state == LeaseState::Held).count();
        sure >= self.quorum.majority()
    }

    /// Renews all votes, and returns when a majority of the servers have confirmed it.
    pub(crate) async fn renew(&self) -> Result<()> {
        let mut renewals: FuturesUnordered<_> = {
            let state = locked(&self.state);
            let held = state.votes.iter().filter_map(|vote| match vote {
                Vote::Held(vote) => Some((Arc::clone(vote.background()), Arc::clone(vote.hold()))),
                Vote::Missing(_) => None,
            });
            held.map(async |(background, hold)| {
                background.renew(&hold, true).await?;
                Ok(hold.check()?)
            })
            .collect()
        };
        let mut answers = Answers::of(&self.quorum);
        while let Some(renewed) = renewals.next().await {
            match renewed {
                Ok(()) => answers.add(()),
                // The server answered. Whether the hold is over depends on the others.
                Err(Error::Lost(_)) => {}
                Err(error) => answers.fail(error),
            }
            if answers.are_majority() {
                break;
            }
        }
        self.end_if_over()?;
        answers.of_majority().map(drop)
    }

    /// Ends the hold, and takes all votes for their release. The task that kept them together ends too.
    /// Returns whether the hold had ended before, and otherwise what its guard held.
    ///
    /// The next hold begins now, and its fence says so. It is larger than those of all votes and turns, and
    /// the same on all servers. A vote that comes late is released with the same floor.
    fn end(&self) -> (Result<(), Lost>, Option<Holding>, Vec<OwnedHold>) {
        let before = self.end_if_over().map(drop);
        let mut state = locked(&self.state);
        let over = *state.over.get_or_insert(HoldEnd::Released);
        let last = state.fence();
        let fences = state.votes.iter().filter_map(Vote::hold).map(|hold| hold.fence());
        if let Some(largest) = fences.chain(last).max() {
            self.next_floor.end_hold(|| {
                let now = self.quorum.clocks.floor().unwrap_or(largest);
                now.max(largest.next())
            });
        }
        let holding = state.holding.take();
        let votes = state.votes.iter_mut().filter_map(|vote| vote.take(Some(over)));
        let votes: Vec<_> = votes.collect();
        drop(state);
        if let Some(last) = last {
            votes.iter().for_each(|vote| vote.hold().end_turns(last));
        }
        self.changed.notify_waiters();
        (before, holding, votes)
    }

    /// Releases what is left of a hold that has ended.
    pub(super) fn give_up(&self) {
        drop(self.end().2);
    }

    /// Releases all votes, and returns when a majority of the servers have confirmed it. If the votes that
    /// are left are no majority, it does not wait for servers that are much slower. Tasks of the clients do
    /// what is left, also if this is dropped midway.
    ///
    /// Fails with `Lost` if so many votes were lost before the release that another client could hold the
    /// lock.
    async fn release(&self) -> Result<()> {
        let (before, holding, votes) = self.end();
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
        // Without these votes, the others are too few for a majority.
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
        // If these were dropped, tasks would send the releases once more.
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

impl Watched for Votes {
    fn check(&self) -> Result<(), Lost> {
        self.end_if_over().map(drop)
    }

    fn lost(&self) -> BoxFuture<'_, Lost> {
        Box::pin(async move {
            let clock = self.quorum.clock();
            loop {
                let changed = self.changed.notified();
                match self.end_if_over() {
                    Err(lost) => return lost,
                    Ok(deadline) => tokio::select! {
                        biased;
                        () = changed => {}
                        () = clock.sleep_until(deadline) => {}
                    },
                }
            }
        })
    }
}

impl AnyHold for Votes {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn owner(&self) -> &Owner {
        &self.owner
    }

    fn votes(&self) -> Option<usize> {
        Some(self.count())
    }

    fn is_fixed(&self) -> bool {
        self.terms.fixed
    }

    fn lease(&self) -> Lease {
        let length = self.terms.length;
        let Ok(deadline) = self.end_if_over() else {
            return Lease::new(length, Duration::ZERO, LeaseState::Lost);
        };
        let state = match self.is_sure(&locked(&self.state)) {
            true => LeaseState::Held,
            false => LeaseState::InDoubt,
        };
        Lease::new(length, deadline.since(self.quorum.clock().now()), state)
    }

    fn begin_guard(&self, counters: &Counters, holding: Holding) {
        let mut state = locked(&self.state);
        let Some(reason) = state.over else {
            state.holding = Some(holding);
            return;
        };
        drop(state);
        holding.ended(counters, GuardEnd::Lost(reason));
    }

    fn end_guard(&self) -> Option<Holding> {
        locked(&self.state).holding.take()
    }

    fn begin_turn(&self, next: Fence, now: LocalTime) -> bool {
        let mut state = locked(&self.state);
        let left = self.deadline(&state).since(now);
        let lasts = state.over.is_none() && self.is_sure(&state) && !self.terms.is_late(left);
        if lasts {
            state.last_turn = Some(next);
        }
        lasts
    }
}

/// A lock that is held on a majority of the servers, with an owner in this process. It is released when the
/// owner drops it.
#[derive(Debug)]
pub(crate) struct Majority {
    pub(crate) fence: Fence,
    ballot: u64,
    votes: Arc<Votes>,
    how: How,
}

impl Majority {
    /// The votes of this ballot are a hold from now on, under this fence.
    pub(super) fn begin(votes: &Arc<Votes>, ballot: u64, fence: Fence) -> Majority {
        let majority = Majority {
            fence,
            ballot,
            how: votes.how(),
            votes: Arc::clone(votes),
        };
        votes.begin_hold(fence);
        locked(&votes.quorum.held).insert(ballot, Arc::clone(votes));
        majority
    }

    pub(crate) fn votes(&self) -> &Arc<Votes> {
        &self.votes
    }

    /// The last fence that a turn of it may have.
    pub(crate) fn last_reserved(&self) -> Fence {
        self.fence.plus(RESERVED)
    }

    /// How most of the votes were got.
    pub(crate) fn how(&self) -> How {
        self.how
    }

    /// Releases the lock, and returns when a majority of the servers have confirmed it, or no slower one
    /// matters.
    pub(crate) async fn release(self) -> Result<()> {
        self.leave();
        self.votes.release().await
    }

    /// Takes the hold out of those whose guards live.
    fn leave(&self) {
        let left = locked(&self.votes.quorum.held).remove(&self.ballot);
        drop(left);
    }
}

impl Drop for Majority {
    fn drop(&mut self) {
        self.leave();
        let (_, holding, votes) = self.votes.end();
        if let Some(holding) = holding {
            holding.ended(&self.votes.quorum.counters, GuardEnd::Dropped);
        }
        drop(votes);
    }
}
