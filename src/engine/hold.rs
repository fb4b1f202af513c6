//! One hold, from its grant to its end: the state that its guard and the background task share.
//!
//! The earliest of three events ends a hold: its release, the server's word, or the local deadline. An ended
//! hold never comes back.

pub(crate) mod durability;
pub(crate) mod owned;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use crate::engine::any_hold::{AnyHold, Watched};
use crate::engine::counters::{Counters, GuardEnd, Holding, How};
use crate::engine::metrics::Group;
use crate::engine::options::check_at_least;
use crate::engine::pending_calls::PendingCalls;
use crate::protocol::ids::RequestId;
use crate::protocol::keys::Keys;
use crate::protocol::{Grant, RESERVED, ReleaseWhat, Renew, TURNS_AHEAD_US};
use crate::sync::locked;
use crate::time::clock::{Clock, LocalTime};
use crate::time::clock_offset::Sample;
use crate::time::deadline::{LeaseTerms, renewal_due, renewal_retry};
use crate::time::server_time::ServerTime;
use crate::types::error::{HoldEnd, Invalid, Lost};
use crate::types::fence::Fence;
use crate::types::lease::{Lease, LeaseState};
use crate::types::owner::Owner;

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) keys: Arc<Keys>,
    pub(super) request: RequestId,
    pub(crate) owner: Owner,
    pub(crate) slot: Option<u32>,
    pub(super) terms: LeaseTerms,
    /// The server time of the grant.
    granted_at: ServerTime,
    pub(super) calls: Arc<PendingCalls>,
    clock: Clock,
    state: Mutex<State>,
    /// Has no permits, and is closed when the hold ends. A watcher that comes later is told all the same.
    ended: Semaphore,
    group: Group,
    how: How,
    /// Nobody else was queued when the lock was granted.
    pub(crate) is_alone: bool,
}

#[derive(Debug)]
struct State {
    /// Changes only in a quorum, which raises it.
    fence: Fence,
    /// The largest fence to which the server was asked to raise it. It may have done so unheard.
    raise_requested: Fence,
    /// The lease of the next renewal. In a quorum it is short until there is a majority.
    lease: Duration,
    /// That lease is longer than the one that the server knows.
    lengthened: bool,
    /// `None` for a lock on one server.
    vote: Option<VoteState>,
    /// The local deadline. The server's deadline has not passed before it.
    deadline: LocalTime,
    server_deadline: ServerTime,
    /// The server time beyond which the hold is never renewed.
    cap: ServerTime,
    /// The cap in local time. If the server's clock is set back, it passes the cap later than intended.
    local_cap: LocalTime,
    /// Whether the server knows that this client has heard of its grant.
    claimed: bool,
    in_doubt: bool,
    /// How long its release keeps the lock taken, and from when on. `None` while no caller has the hold.
    kept: Option<(Duration, ServerTime)>,
    /// The last fence that turns have used, on one server.
    last_turn: Option<Fence>,
    over: Option<HoldEnd>,
    /// It is retained, and no guard has it.
    is_idle: bool,
    /// What its guard holds, from the time when the guard is made until the hold ends. The holds of a quorum
    /// have no guards of their own.
    holding: Option<Holding>,
}

/// What a hold is in a quorum. The turns are those of its majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VoteState {
    /// It was part of no majority, so no turn has used a fence of it.
    Alone,
    /// Its majority lasts, as far as it knows. Turns may use all fences that it reserved, also when it is
    /// lost before the others.
    Joined,
    /// Its majority has ended. No turn used a fence after this one.
    Over(Fence),
}

/// What becomes of the renewals of a vote that joins a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewals {
    /// The vote is renewed as before, if at all.
    GoOn,
    /// It was not renewed any more, and is again.
    Begin,
}

impl Hold {
    pub(super) fn new(
        keys: Arc<Keys>,
        grant: &Grant,
        terms: LeaseTerms,
        calls: Arc<PendingCalls>,
        clock: Clock,
        deadline: LocalTime,
    ) -> Hold {
        let granted_for = if grant.pushed {
            grant.request.claim_window()
        } else {
            terms.lease()
        };
        // The local deadline is earlier than the end of the lease, by a margin. The local cap has the same
        // margin.
        let local_cap = deadline.after(terms.longest().saturating_sub(granted_for));
        let granted_at = grant.deadline.before(granted_for);
        let vote = calls.are_of_a_vote().then_some(VoteState::Alone);
        Hold {
            keys,
            owner: Owner::from_wire(grant.request.owner()),
            request: grant.request.clone(),
            slot: grant.slot,
            terms,
            granted_at,
            calls,
            clock,
            state: Mutex::new(State {
                fence: grant.fence,
                raise_requested: grant.fence,
                lease: terms.lease(),
                lengthened: false,
                vote,
                last_turn: None,
                deadline,
                server_deadline: grant.deadline,
                cap: granted_at.after(terms.longest()),
                local_cap,
                claimed: !grant.pushed,
                in_doubt: false,
                kept: None,
                over: None,
                is_idle: false,
                holding: None,
            }),
            ended: Semaphore::new(0),
            group: Group::default(),
            how: if grant.pushed { How::HandedOver } else { How::Free },
            is_alone: !grant.pushed,
        }
    }

    /// The hold is counted in this group. A grant that was not pushed was found by a later call of the
    /// request if that `was_queued`.
    pub(super) fn count_in(&mut self, group: Group, was_queued: bool) {
        self.group = group;
        if was_queued && self.how == How::Free {
            self.how = How::Polled;
        }
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    pub(crate) fn how(&self) -> How {
        self.how
    }

    /// What is left of the whole lease when a renewal is answered. `None` if the hold lasts for a claim
    /// window so far: its renewals are due earlier.
    pub(super) fn margin(&self, at: &Sample) -> Option<Duration> {
        let state = locked(&self.state);
        let is_whole = state.claimed && !state.lengthened;
        is_whole.then(|| state.deadline.since(at.received))
    }

    /// The call that prolongs the hold. The first renewal of a pushed grant is also its claim.
    pub(super) fn renewal(&self) -> Renew {
        let state = locked(&self.state);
        Renew {
            keys: Arc::clone(&self.keys),
            request: self.request.clone(),
            fence: state.fence,
            lease: state.lease,
            cap: state.cap,
            on_demand: false,
        }
    }

    /// The lease of the next renewal.
    pub(super) fn lease_length(&self) -> Duration {
        locked(&self.state).lease
    }

    pub(crate) fn deadline(&self) -> LocalTime {
        locked(&self.state).deadline
    }

    /// The caller has the hold from its grant on, so work may begin. Without this call, its release keeps
    /// nothing taken.
    pub(crate) fn mark_used(&self) {
        if let Some(at_least) = self.terms.at_least {
            locked(&self.state).kept = Some((at_least, self.granted_at));
        }
    }

    /// The release keeps the lock taken until this long after the call.
    pub(crate) fn keep_for(&self, at_least: Option<Duration>) -> Result<(), Invalid> {
        if let Some(at_least) = at_least {
            check_at_least(at_least, &self.terms)?;
        }
        let mut state = locked(&self.state);
        let from = since(&state, self.clock.now());
        state.kept = at_least.map(|at_least| (at_least, from));
        Ok(())
    }

    /// The fence of the present turn, or of the last one.
    pub(super) fn last_fence(&self) -> Fence {
        let state = locked(&self.state);
        state.last_turn.unwrap_or(state.fence)
    }

    /// How a release ends the hold. It tells the server the last fence that was used, if that is not the
    /// hold's own.
    pub(super) fn release_kind(&self) -> ReleaseWhat {
        let state = locked(&self.state);
        let fence = state.fence;
        // The work of a hold that was lost may be unfinished.
        let kept = (state.kept).filter(|_| state.over == Some(HoldEnd::Released));
        if let Some((at_least, from)) = kept {
            let until = from.after(at_least);
            return ReleaseWhat::Keep {
                fence,
                at_least,
                until,
            };
        }
        let last = match state.vote {
            None => state.last_turn,
            Some(VoteState::Alone) => None,
            Some(VoteState::Joined) => Some(fence.plus(RESERVED)),
            Some(VoteState::Over(last)) => Some(last),
        };
        match last {
            Some(last) if last > fence => ReleaseWhat::Turns { first: fence, last },
            _ => ReleaseWhat::Grant(fence),
        }
    }

    /// How many permits were granted.
    pub(crate) fn permits(&self) -> u32 {
        self.request.weight()
    }

    /// The state of the lease now. This reads the clock, so a process that was paused past its lease sees at
    /// its first look that the hold is lost.
    pub(crate) fn lease(&self) -> Lease {
        let state = locked(&self.state);
        let remaining = state.deadline.since(self.clock.now());
        let is_lost = state.over.is_some() || remaining.is_zero();
        let (remaining, state) = match (is_lost, state.in_doubt) {
            (true, _) => (Duration::ZERO, LeaseState::Lost),
            (false, true) => (remaining, LeaseState::InDoubt),
            (false, false) => (remaining, LeaseState::Held),
        };
        Lease::new(self.terms.length, remaining, state)
    }

    pub(crate) fn check(&self) -> Result<(), Lost> {
        self.check_at(|| self.clock.now())
    }

    pub(super) fn check_at(&self, now: impl FnOnce() -> LocalTime) -> Result<(), Lost> {
        let state = locked(&self.state);
        match state.over {
            Some(reason) => Err(self.lost_by(reason)),
            None if now() >= state.deadline => Err(self.lost_by(self.reason_at_deadline(&state))),
            None => Ok(()),
        }
    }

    /// Ends the hold, unless it has ended already. Returns the earlier reason if it had, and otherwise what
    /// its guard held.
    pub(super) fn end(&self, reason: HoldEnd) -> (Option<HoldEnd>, Option<Holding>) {
        let mut state = locked(&self.state);
        let before = state.over;
        state.over = before.or(Some(reason));
        let holding = state.holding.take();
        drop(state);
        self.ended.close();
        (before, holding)
    }

    /// It is a vote of a quorum, and no hold by itself.
    pub(super) fn is_vote(&self) -> bool {
        self.calls.are_of_a_vote()
    }

    pub(super) fn is_idle(&self) -> bool {
        locked(&self.state).is_idle
    }

    pub(super) fn is_over(&self) -> bool {
        locked(&self.state).over.is_some()
    }

    /// Why the hold ends when the server has nothing of it any more, and nobody has held the lock since.
    /// Either its time was over, or somebody deleted the key before that.
    pub(super) fn reason_gone(&self) -> HoldEnd {
        let state = locked(&self.state);
        if self.clock.now() < state.deadline {
            HoldEnd::Taken
        } else {
            self.reason_at_deadline(&state)
        }
    }

    fn reason_at_deadline(&self, state: &State) -> HoldEnd {
        let is_at_cap = !is_short_of_cap(state) || state.deadline >= state.local_cap;
        if is_at_cap && self.terms.ends_by_max_hold() {
            HoldEnd::MaxHold
        } else {
            HoldEnd::Expired
        }
    }

    /// A renewal with this lease has prolonged the hold. Both local deadlines are safe, so the later one
    /// counts. A reply that comes after the old deadline changes nothing: a caller may already have been told
    /// that the hold is lost.
    pub(super) fn renewed(&self, lease: Duration, server_deadline: ServerTime, deadline: LocalTime) {
        let mut state = locked(&self.state);
        if self.clock.now() >= state.deadline {
            return;
        }
        state.server_deadline = server_deadline;
        state.deadline = state.deadline.max(deadline).min(state.local_cap);
        state.claimed = true;
        state.lengthened &= lease < state.lease;
        state.in_doubt = false;
    }

    /// Whether another guard may have the hold from now on.
    fn lasts(&self, state: &State, now: LocalTime) -> bool {
        let left = state.deadline.since(now);
        state.over.is_none() && !state.in_doubt && !self.terms.is_late(left)
    }

    pub(super) fn set_in_doubt(&self) {
        locked(&self.state).in_doubt = true;
    }

    /// How long a renewal may go unanswered before the next one is sent.
    pub(super) fn renewal_patience(&self) -> Duration {
        let (now, deadline) = (self.clock.now(), self.deadline());
        renewal_retry(now, deadline).since(now)
    }

    /// Whether a renewal may prolong the lease beyond the end that this client knows.
    pub(super) fn may_be_prolonged(&self) -> bool {
        is_short_of_cap(&locked(&self.state))
    }

    /// When the background task must look at the hold next, to renew it or to end it.
    pub(super) fn next_look(&self) -> LocalTime {
        let state = locked(&self.state);
        let now = self.clock.now();
        if state.claimed && (!is_short_of_cap(&state) || state.deadline >= state.local_cap) {
            return state.deadline;
        }
        let due = if state.in_doubt {
            renewal_retry
        } else {
            renewal_due
        };
        due(now, state.deadline).min(state.deadline)
    }

    pub(super) fn lost_by(&self, reason: HoldEnd) -> Lost {
        Lost::new(Arc::clone(&self.keys.name), reason)
    }

    // The fence. In a quorum its server may raise it, so that all votes have one fence.

    pub(crate) fn fence(&self) -> Fence {
        locked(&self.state).fence
    }

    /// The least fence that a release of this hold grants to the next request. `None` for a lock on one
    /// server, which takes it from its clock.
    pub(super) fn next_floor(&self) -> Option<Fence> {
        let floor = self.calls.next_floor(|| self.clock.now())?;
        Some(floor.max(self.fence().next()))
    }

    /// The server is asked to raise the fence to this one, if it is smaller.
    pub(super) fn ask_to_raise(&self, fence: Fence) {
        let mut state = locked(&self.state);
        state.raise_requested = state.raise_requested.max(fence);
    }

    /// The server knows no hold under this fence. It may have raised the fence, so the hold has the raised
    /// one from now on. Returns whether that is another one.
    pub(super) fn try_raised_fence(&self, tried: Fence) -> bool {
        let mut state = locked(&self.state);
        if state.fence == tried {
            state.fence = state.raise_requested;
        }
        state.fence != tried
    }

    /// The server has raised the fence.
    pub(super) fn raised(&self, fence: Fence) {
        let mut state = locked(&self.state);
        state.fence = state.fence.max(fence);
    }

    // Turns.

    /// The last fence that a turn of this hold may have.
    ///
    /// A server that loses a lock grants it next under a fence that is ahead of its time. No turn has that
    /// fence or a larger one. So the first hold of a lock has one turn, since its own fence is ahead of the
    /// time. A fence that is farther ahead shows that the clock was set back. Then the fence after a loss is
    /// smaller in any case.
    pub(crate) fn last_reserved(&self) -> Fence {
        let fence = self.fence();
        let after_a_loss = 1000 * self.granted_at.ms() + TURNS_AHEAD_US;
        // The time was cut to ms.
        let may_reach_it = fence.get() < after_a_loss + 1000;
        let limit = Fence::new(after_a_loss - 1).filter(|_| may_reach_it);
        let reserved = fence.plus(RESERVED);
        limit.map_or(reserved, |limit| reserved.min(limit))
    }

    // A vote. In a quorum, a majority of votes are one hold. They may be older or newer than that.

    /// The hold is a vote of a majority that was decided at this time: it is renewed with this lease from now
    /// on, and lasts for no longer than the majority may.
    pub(crate) fn join(&self, decided: LocalTime, lease: Duration) -> Renewals {
        let mut state = locked(&self.state);
        if state.vote != Some(VoteState::Alone) {
            return Renewals::GoOn;
        }
        state.vote = Some(VoteState::Joined);
        state.lengthened |= lease > state.lease;
        state.lease = lease;
        let longest = self.terms.longest();
        let (cap, local_cap) = (since(&state, decided).after(longest), decided.after(longest));
        let is_renewed = is_short_of_cap(&state);
        // A vote that lasts up to its own cap is not renewed any more, unless the majority came much later.
        let is_much_later = cap.since(state.cap) > self.terms.claim_window() / 4;
        if is_renewed || is_much_later {
            (state.cap, state.local_cap) = (cap, local_cap);
        }
        state.deadline = state.deadline.min(local_cap);
        match is_renewed || !is_much_later {
            true => Renewals::GoOn,
            false => Renewals::Begin,
        }
    }

    /// The majority has ended, and its turns used no fence after this one.
    pub(crate) fn end_turns(&self, last: Fence) {
        locked(&self.state).vote = Some(VoteState::Over(last));
    }
}

impl Watched for Hold {
    fn check(&self) -> Result<(), Lost> {
        Hold::check(self)
    }

    fn lost(&self) -> BoxFuture<'_, Lost> {
        Box::pin(async move {
            loop {
                match self.check() {
                    Err(lost) => return lost,
                    Ok(()) => tokio::select! {
                        biased;
                        // Fails at once if the hold has ended since the check.
                        _ = self.ended.acquire() => {}
                        () = self.clock.sleep_until(self.deadline()) => {}
                    },
                }
            }
        })
    }
}

impl AnyHold for Hold {
    fn name(&self) -> &Arc<str> {
        &self.keys.name
    }

    fn owner(&self) -> &Owner {
        &self.owner
    }

    fn slot(&self) -> Option<u32> {
        self.slot
    }

    fn is_fixed(&self) -> bool {
        self.terms.fixed
    }

    fn lease(&self) -> Lease {
        Hold::lease(self)
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

    fn rest(&self, now: LocalTime) -> bool {
        let mut state = locked(&self.state);
        state.is_idle = self.lasts(&state, now);
        state.is_idle
    }

    fn begin_turn(&self, next: Fence, now: LocalTime) -> bool {
        let mut state = locked(&self.state);
        let lasts = self.lasts(&state, now);
        if lasts {
            (state.last_turn, state.is_idle) = (Some(next), false);
        }
        lasts
    }
}

fn is_short_of_cap(state: &State) -> bool {
    state.server_deadline < state.cap
}

/// The server time of a local time before the deadline. The local deadline is never later than the server's,
/// so this may be a little late, but not early.
fn since(state: &State, local: LocalTime) -> ServerTime {
    state.server_deadline.before(state.deadline.since(local))
}
