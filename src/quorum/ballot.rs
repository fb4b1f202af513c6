//! One acquire call over all servers of a quorum, from its first poll to the end of its hold.
//!
//! The ballot asks each server for its lock, as any client of that server does, and under the same ticket
//! everywhere. It is decided when a majority of its votes have one fence. Dropping it withdraws all requests
//! that have no vote.
//!
//! While it has too few votes, it *looks* at each of them from time to time, to hear whether an earlier
//! request is queued at that server. Such a vote is given up. It counts no more; a new request queues under
//! the same ticket, and thus behind the earlier one; once that is queued, the vote is released. A lost vote
//! takes the same way.
//!
//! A client may be unable to reach a majority of the servers. Its ballots cannot be decided then, but their
//! votes may be in the way of the other clients, which need every vote while a minority of the servers is
//! down. So a ballot that has a vote *leaves* the servers that it reaches while they are no majority. It
//! comes back to all of them at once, under its ticket. A waiter that is cut off hears of that by its next
//! poll, so the others may wait for a claim window and a time-out.
//!
//! A ballot that is decided goes on for as long as its hold lasts. It replaces votes that are lost, and asks
//! for those that it has not got, before all who wait. So a hold that lasts outlives one server after the
//! other, as long as a majority is there at any time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::QuorumClient;
use super::answers::{Tally, next_until, no_majority, stragglers_until};
use super::votes::{Majority, Votes};
use crate::engine::acquire::{AcquireParams, Arrival, Attempt, Tried, VoteParams, try_acquire};
use crate::engine::any_hold::Watched;
use crate::engine::counters::Correction;
use crate::engine::floor::Floor;
use crate::engine::hold::owned::OwnedHold;
use crate::engine::hold::{Hold, Renewals};
use crate::protocol::Failure;
use crate::time::backoff::Backoff;
use crate::time::clock::LocalTime;
use crate::time::deadline::LeaseTerms;
use crate::time::server_time::Ticket;
use crate::types::error::{Error, Result};
use crate::types::fence::Fence;

/// How many numbers of requests a ballot has to itself. A request that waits for ever, at a server that is
/// away, asks again no more than once a second.
const REQUESTS_OF_A_BALLOT: u64 = 1 << 24;

/// When the votes of a ballot that has too few are looked at first. In an undisturbed hand-over, all pushes
/// arrive within this time.
const FIRST_LOOK: Duration = Duration::from_millis(10);

/// The longest pause between two looks. A client that is cut off again and again may reach its servers for
/// some 100 ms at a time, and needs the votes of others then.
const LONGEST_LOOK_PAUSE: Duration = Duration::from_millis(160);

/// The ticket of a holder that asks for a missing vote: before all who wait, since nobody can hold the lock
/// with that vote while this client does.
const BEFORE_ALL: Ticket = Ticket(1);

/// The ballot to which the request of this number belongs.
pub(super) fn ballot_of(request: u64) -> u64 {
    request / REQUESTS_OF_A_BALLOT
}

pub(super) struct Ballot {
    quorum: Arc<QuorumClient>,
    params: AcquireParams,
    /// Which of this client's ballots it is.
    number: u64,
    /// When the caller began to wait.
    arrived: LocalTime,
    /// Numbers the requests.
    numbers: Arc<AtomicU64>,
    /// The least fences that are asked for.
    floor: Floor,
    votes: Arc<Votes>,
    phase: Phase,
    /// By server.
    seats: Vec<Seat>,
    pending: FuturesUnordered<Pending>,
}

enum Phase {
    /// The votes are no hold yet.
    Asking {
        ticket: Ticket,
        /// When the caller gives up. `None` means never.
        until: Option<Instant>,
        look_after: Duration,
        look_at: Option<Instant>,
    },
    /// The votes are a hold. A hold that ends before its first renewal sends nothing for what it lacks.
    Decided { first_renewal: Instant },
    /// What the hold lacks is asked for.
    Keeping,
}

/// What the ballot does at one server, besides a vote that counts.
struct Seat {
    attempt: Option<AbortHandle>,
    /// A vote that counts no more. It is released once the present attempt has its place.
    leaving: Option<OwnedHold>,
    is_looking: bool,
    state: SeatState,
    /// The pauses before a server that failed is asked again.
    backoff: Backoff,
}

/// What the server answered last to an attempt.
enum SeatState {
    Outstanding,
    /// The request is in the queue, or has the vote.
    Placed,
    Failed(Error),
    /// Nothing is asked of the server, until the ballot reaches a majority.
    Left,
}

/// Something that happened at a server.
enum Event {
    Queued(Box<Attempt<AcquireParams>>),
    Acquired(Result<OwnedHold>),
    /// The server was asked without waiting.
    Tried(Result<Tried<OwnedHold>>),
    /// The attempt was given up here.
    Aborted,
    Lost(Arc<Hold>),
    /// A look at this hold has ended.
    Looked {
        hold: Arc<Hold>,
        /// Whether an earlier request is queued, or why the server does not say so.
        earlier: Result<bool>,
    },
}

type Pending = Pin<Box<dyn Future<Output = (usize, Event)> + Send>>;

impl Seat {
    fn new() -> Seat {
        Seat {
            attempt: None,
            leaving: None,
            is_looking: false,
            state: SeatState::Outstanding,
            backoff: Backoff::new(),
        }
    }

    fn is_left(&self) -> bool {
        matches!(self.state, SeatState::Left)
    }

    /// The present attempt is in the queue, or has the vote. Releases the vote before.
    fn has_its_place(&mut self) {
        self.leaving = None;
        self.state = SeatState::Placed;
        self.backoff = Backoff::new();
    }
}

impl Ballot {
    /// On the heap, since it is moved from the caller to the task that goes on with it.
    pub(super) fn new(
        quorum: &Arc<QuorumClient>,
        params: AcquireParams,
        arrival: Arrival,
        until: Option<Instant>,
    ) -> Result<Box<Ballot>> {
        let number = quorum.next_ballot();
        let owner = quorum.owner_of(&quorum.client().id, number);
        let votes = Votes::new(quorum, &params.keys.name, owner, params.terms);
        let mut seats = Vec::new();
        seats.resize_with(quorum.servers.len(), Seat::new);
        let floor = Floor::of_ballot(&quorum.clocks, quorum.clock().now(), &votes.next_floor)?;
        Ok(Box::new(Ballot {
            number,
            arrived: arrival.at,
            numbers: Arc::new(AtomicU64::new(number * REQUESTS_OF_A_BALLOT)),
            floor,
            votes: Arc::new(votes),
            phase: Phase::Asking {
                ticket: arrival.ticket.unwrap_or_else(|| quorum.next_ticket()),
                until,
                look_after: FIRST_LOOK,
                look_at: None,
            },
            quorum: Arc::clone(quorum),
            params,
            seats,
            pending: FuturesUnordered::new(),
        }))
    }

    /// Asks all servers, and runs until the ballot is decided.
    pub(super) async fn decided(&mut self) -> Result<Fence> {
        for server in 0..self.seats.len() {
            self.ask(server, Duration::ZERO);
        }
        loop {
            if let Some(fence) = self.votes.agreed() {
                return Ok(fence);
            }
            self.make_decidable();
            self.step().await?;
        }
    }

    /// Asks each server once, and returns when the ballot is decided or can no longer be. If a majority of
    /// the servers have answered, and it depends on the others, it does not wait for those that are much
    /// slower: its votes would keep the lock from all others meanwhile.
    ///
    /// If the lock is busy, a majority can be free after `ttl` at the earliest, unless somebody releases it.
    pub(super) async fn tried(&mut self) -> Result<Tried<Fence>> {
        let (began, mut until) = (Instant::now(), None);
        for server in 0..self.seats.len() {
            let params = self.next_params();
            let waitlists = Arc::clone(self.quorum.servers[server].waitlists());
            self.wait_for(server, async move {
                Event::Tried(try_acquire(waitlists, params).await)
            });
        }
        let mut tally = Tally {
            servers: self.seats.len(),
            majority: self.quorum.majority(),
            outstanding: self.seats.len(),
            ..Tally::default()
        };
        while !tally.is_over(self.votes.count()) {
            if let Some(fence) = self.votes.agreed() {
                return Ok(Tried::Held(fence));
            }
            if !self.votes.are_too_few() {
                self.make_decidable();
            }
            if tally.is_answered() {
                until.get_or_insert_with(|| stragglers_until(began));
            }
            let until = until.filter(|_| self.votes.are_too_few());
            let Some((server, event)) = next_until(&mut self.pending, until).await else {
                // A server that may be away does not count as free.
                tally.outstanding = 0;
                break;
            };
            tally.outstanding -= usize::from(matches!(event, Event::Tried(_)));
            match event {
                Event::Tried(Ok(Tried::Busy { ttl, ahead })) => {
                    tally.ttls.push(ttl);
                    tally.ahead = tally.ahead.max(ahead);
                }
                Event::Tried(Err(error)) => tally.errors.push(error),
                Event::Looked {
                    hold,
                    earlier: Err(error @ Error::Refused(_)),
                } if self.votes.counts(server, &hold) => {
                    drop(self.votes.take(server));
                    tally.errors.push(error);
                }
                event => self.on(server, event)?,
            }
        }
        tally.verdict(self.votes.count())
    }

    /// The votes are a hold from now on, under this fence: they get their whole lease. A task keeps them
    /// together.
    pub(super) fn begin_hold(mut self: Box<Self>, fence: Fence) -> Majority {
        let majority = Majority::begin(&self.votes, self.number, fence);
        self.floor.begin_hold(fence);
        self.phase = Phase::Decided {
            first_renewal: Instant::now() + self.params.terms.claim_window() / 3,
        };
        self.join_votes();
        let client = Arc::clone(self.quorum.client());
        client.spawn(self.keep());
        majority
    }

    /// Keeps the votes of a hold together until it is over.
    async fn keep(mut self: Box<Self>) {
        let votes = Arc::clone(&self.votes);
        while votes.end_if_over().is_ok() {
            tokio::select! {
                biased;
                _ = votes.lost() => {}
                // One server after the other may fail. An error of one of them does not end the hold.
                _ = self.step() => {}
            }
            self.join_votes();
            if let Phase::Keeping = self.phase {
                // A vote that came later may have a smaller fence. Its server may be one of a majority whose
                // others forget the fence of this hold.
                self.raise_to(self.floor.own());
            }
        }
        // What is left of the votes is of no use.
        votes.give_up();
    }

    fn join_votes(&self) {
        let decided = self.votes.decided();
        for (server, hold) in self.votes.holds() {
            if hold.join(decided, self.params.terms.lease()) == Renewals::Begin {
                self.quorum.servers[server].background().watch(&hold);
            }
        }
    }

    /// Waits for whatever happens next, and handles it.
    async fn step(&mut self) -> Result<()> {
        let timer = match self.phase {
            Phase::Asking { look_at, .. } => look_at,
            Phase::Decided { first_renewal } => Some(first_renewal),
            Phase::Keeping => None,
        };
        let over = async {
            match timer {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            Some((server, event)) = self.pending.next() => self.on(server, event)?,
            () = over => match self.phase {
                Phase::Asking { .. } => self.look_at_all(),
                Phase::Decided { .. } | Phase::Keeping => self.ask_for_the_missing(),
            },
        }
        Ok(())
    }

    /// Handles what happened at a server. Fails if the whole call does.
    fn on(&mut self, server: usize, event: Event) -> Result<()> {
        match event {
            Event::Queued(mut attempt) => {
                self.seats[server].has_its_place();
                self.wait_for(server, async move { Event::Acquired(attempt.granted().await) });
            }
            Event::Acquired(Ok(vote)) | Event::Tried(Ok(Tried::Held(vote))) => self.add_vote(server, vote),
            Event::Acquired(Err(error @ (Error::Unavailable(_) | Error::Refused(_)))) => {
                self.failed(server, error)?;
            }
            Event::Acquired(Err(error @ Error::Timeout { .. })) => {
                self.seats[server].attempt = None;
                self.seats[server].state = SeatState::Failed(error);
                self.check_failures()?;
            }
            Event::Acquired(Err(error)) => return Err(error),
            // Once the try is over, the first renewal asks for what is missing.
            Event::Aborted | Event::Tried(_) => {}
            Event::Lost(hold) if !self.votes.counts(server, &hold) => {}
            Event::Lost(_) if !self.is_hold() => self.begin_again(server),
            Event::Lost(_) => {
                drop(self.votes.take(server));
                // A lock that was taken by force must not come back.
                if self.votes.missing().contains(&server) {
                    self.ask(server, Duration::ZERO);
                }
            }
            Event::Looked { hold, earlier } => self.looked(server, &hold, earlier)?,
        }
        Ok(())
    }

    fn is_hold(&self) -> bool {
        !matches!(self.phase, Phase::Asking { .. })
    }

    /// When the caller gives up, and the place in all queues. A hold asks for votes without a bound.
    fn bound_and_ticket(&self) -> (Option<Instant>, Ticket) {
        match self.phase {
            Phase::Asking { until, ticket, .. } => (until, ticket),
            Phase::Decided { .. } | Phase::Keeping => (None, BEFORE_ALL),
        }
    }

    // Asking for votes.

    /// Asks a server for its vote, after a pause. Gives up the attempt before, if that is under way.
    fn ask(&mut self, server: usize, pause: Duration) {
        let (params, (until, ticket)) = (self.next_params(), self.bound_and_ticket());
        let waitlists = Arc::clone(self.quorum.servers[server].waitlists());
        let queued = async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            let (at, ticket) = (waitlists.client().now(), Some(ticket));
            let mut attempt = Box::new(Attempt::new(&waitlists, params, Arrival { at, ticket }, until)?);
            Ok(match attempt.queued().await? {
                Some(vote) => Event::Acquired(Ok(vote)),
                None => Event::Queued(attempt),
            })
        };
        let queued = queued.map(|event| event.unwrap_or_else(|error| Event::Acquired(Err(error))));
        self.wait_for(server, queued);
    }

    /// Waits for the next event of the present attempt at a server, instead of the one before.
    fn wait_for(&mut self, server: usize, event: impl Future<Output = Event> + Send + 'static) {
        let (abort, registration) = AbortHandle::new_pair();
        if let Some(before) = self.seats[server].attempt.replace(abort) {
            before.abort();
        }
        let event = Abortable::new(event, registration);
        self.pending.push(Box::pin(
            event.map(move |event| (server, event.unwrap_or(Event::Aborted))),
        ));
    }

    fn next_params(&self) -> AcquireParams {
        AcquireParams {
            terms: terms_of_votes(&self.params.terms),
            vote: Some(Box::new(VoteParams {
                floor: self.floor.clone(),
                numbers: Arc::clone(&self.numbers),
            })),
            ..self.params.clone()
        }
    }

    /// From the first renewal of a hold on.
    fn ask_for_the_missing(&mut self) {
        self.phase = Phase::Keeping;
        for server in self.votes.missing() {
            self.ask(server, Duration::ZERO);
        }
    }

    /// Counts a vote from now on, until it is lost.
    fn add_vote(&mut self, server: usize, vote: OwnedHold) {
        let hold = Arc::clone(vote.hold());
        self.pending.push(Box::pin(async move {
            hold.lost().await;
            (server, Event::Lost(hold))
        }));
        let seat = &mut self.seats[server];
        seat.has_its_place();
        (seat.attempt, seat.is_looking) = (None, false);
        self.votes.put(server, vote);
        match &mut self.phase {
            Phase::Asking {
                look_after, look_at, ..
            } => (*look_after, *look_at) = (FIRST_LOOK, None),
            Phase::Decided { .. } => {}
            Phase::Keeping => self.corrected(Correction::Repaired),
        }
    }

    fn corrected(&self, correction: Correction) {
        self.quorum.counters.corrected(&self.params.group, correction);
    }

    /// Stops counting a vote, and asks for it again.
    fn begin_again(&mut self, server: usize) {
        self.seats[server].leaving = self.votes.take(server);
        self.ask(server, Duration::ZERO);
    }

    /// A server gives no vote. Asks it again after a pause. Fails if the servers that are left are no
    /// majority.
    fn failed(&mut self, server: usize, error: Error) -> Result<()> {
        let seat = &mut self.seats[server];
        seat.state = SeatState::Failed(error);
        let pause = seat.backoff.step();
        self.ask(server, pause);
        self.check_failures()
    }

    /// Fails once the remaining servers cannot form a majority.
    fn check_failures(&self) -> Result<()> {
        let (servers, majority) = (self.seats.len(), self.quorum.majority());
        let (mut errors, mut free_in, mut outstanding) = (Vec::new(), Vec::new(), Vec::new());
        for (server, seat) in self.seats.iter().enumerate() {
            match &seat.state {
                SeatState::Failed(Error::Timeout { ttl, .. }) => free_in.push(*ttl),
                SeatState::Failed(error) => errors.push(error.clone()),
                SeatState::Outstanding => outstanding.push(server),
                SeatState::Placed | SeatState::Left => {}
            }
        }
        if servers - errors.len() - free_in.len() >= majority {
            return Ok(());
        }
        free_in.sort_unstable();
        let Some(&free_in) = free_in.get(free_in.len().min(majority).wrapping_sub(1)) else {
            let answering = servers - errors.len() - outstanding.len();
            return Err(no_majority(servers, answering, &errors));
        };
        // The bound of the wait is over. The servers that are outstanding may have failed as well.
        let (keys, channel) = (&self.params.keys, &self.params.channel);
        let unheard = |server| self.quorum.unheard(server, keys, channel, self.arrived);
        errors.extend(outstanding.into_iter().filter_map(unheard));
        Err(self.quorum.timed_out(&errors, self.arrived, free_in))
    }

    // Leaving servers, and coming back.

    /// Whether the server may give its vote: it answers this client.
    fn reaches(&self, server: usize) -> bool {
        let waitlists = self.quorum.servers[server].waitlists();
        let has_failed = matches!(self.seats[server].state, SeatState::Failed(_));
        !has_failed && !waitlists.is_failing(&self.params.channel)
    }

    /// Leaves the servers that are reached, if they are no majority. Otherwise comes back to those that were
    /// left.
    fn leave_or_come_back(&mut self) {
        let servers = 0..self.seats.len();
        let reached: Vec<_> = servers.map(|server| self.reaches(server)).collect();
        let reaches_majority =
            reached.iter().filter(|is_reached| **is_reached).count() >= self.quorum.majority();
        for (server, is_reached) in reached.into_iter().enumerate() {
            match (self.seats[server].is_left(), !reaches_majority && is_reached) {
                (false, true) => self.leave(server),
                (true, false) => self.come_back(server),
                _ => {}
            }
        }
    }

    /// Withdraws whatever the ballot has at this server.
    fn leave(&mut self, server: usize) {
        drop(self.votes.take(server));
        let seat = &mut self.seats[server];
        (seat.leaving, seat.state) = (None, SeatState::Left);
        if let Some(attempt) = seat.attempt.take() {
            attempt.abort();
        }
    }

    fn come_back(&mut self, server: usize) {
        self.seats[server].state = SeatState::Outstanding;
        self.ask(server, Duration::ZERO);
    }

    // Looks: renewals, which a vote needs anyway, whose replies say whether an earlier request is queued at
    // that server. A look can also raise the fence of its vote.

    /// Does what the ballot needs to be decided. If there are too few votes, they may be in the way of
    /// others: leaves the servers, or looks at the votes after a while. Otherwise they have different fences,
    /// which it raises.
    fn make_decidable(&mut self) {
        let holds = self.votes.holds();
        if !self.votes.are_too_few() {
            let largest = holds.iter().map(|(_, hold)| hold.fence()).max();
            largest.into_iter().for_each(|fence| self.raise_to(fence));
        } else if !holds.is_empty() || self.seats.iter().any(Seat::is_left) {
            self.leave_or_come_back();
            if let Phase::Asking {
                look_after, look_at, ..
            } = &mut self.phase
            {
                look_at.get_or_insert(Instant::now() + *look_after);
            }
        }
    }

    /// Looks at all votes, since there are too few.
    fn look_at_all(&mut self) {
        if let Phase::Asking {
            look_after, look_at, ..
        } = &mut self.phase
        {
            *look_after = (2 * *look_after)
                .min(LONGEST_LOOK_PAUSE)
                .min(self.params.terms.claim_window() / 3);
            *look_at = None;
        }
        for (server, hold) in self.votes.holds() {
            let fence = hold.fence();
            self.look(server, hold, fence);
        }
    }

    /// Raises the votes with a smaller fence.
    fn raise_to(&mut self, fence: Fence) {
        for (server, hold) in self.votes.holds() {
            if hold.fence() < fence {
                self.look(server, hold, fence);
            }
        }
    }

    /// Renews a vote, raises its fence, and hears whether an earlier request is queued. This is repeated
    /// until it is answered or refused, until the vote is lost, or until the caller gives up.
    fn look(&mut self, server: usize, hold: Arc<Hold>, floor: Fence) {
        if std::mem::replace(&mut self.seats[server].is_looking, true) {
            return;
        }
        if hold.fence() < floor {
            self.corrected(Correction::Raised);
        }
        let background = Arc::clone(self.quorum.servers[server].background());
        let ((until, ticket), arrived) = (self.bound_and_ticket(), self.arrived);
        let quorum = Arc::clone(&self.quorum);
        let (keys, channel) = (Arc::clone(&self.params.keys), Arc::clone(&self.params.channel));
        self.pending.push(Box::pin(async move {
            let looked = async {
                let mut backoff = Backoff::new();
                while hold.check().is_ok() {
                    match background.look_for_earlier(&hold, floor, ticket).await {
                        Ok(answer) => return Ok(answer),
                        Err(refused @ Failure::Refused(_)) => return Err(refused.into()),
                        Err(_) => backoff.pause().await,
                    }
                }
                Ok(false)
            };
            let earlier = match until {
                None => looked.await,
                // The votes may be a majority, so that no attempt is left that would end in time.
                Some(until) => match timeout_at(until, looked).await {
                    Ok(looked) => looked,
                    Err(_) => Err(quorum.bound_over(&keys, &channel, arrived).await),
                },
            };
            (server, Event::Looked { hold, earlier })
        }));
    }

    /// Handles the answer to a look. Fails if the whole call does.
    fn looked(&mut self, server: usize, hold: &Arc<Hold>, earlier: Result<bool>) -> Result<()> {
        if !self.votes.counts(server, hold) {
            return Ok(());
        }
        self.seats[server].is_looking = false;
        match earlier {
            Ok(true) if self.votes.are_too_few() => {
                self.corrected(Correction::Yielded);
                self.begin_again(server);
                Ok(())
            }
            Ok(_) => Ok(()),
            // Nobody knows whether this vote keeps an earlier request waiting.
            Err(refused @ Error::Refused(_)) if !self.is_hold() => {
                drop(self.votes.take(server));
                self.failed(server, refused)
            }
            Err(error) => Err(error),
        }
    }
}

/// Until there is a majority, a vote lasts for the claim window only. So a client that dies with too few
/// votes does not hold up the others for a whole lease.
fn terms_of_votes(terms: &LeaseTerms) -> LeaseTerms {
    LeaseTerms {
        length: terms.claim_window(),
        fixed: false,
        max_hold: Some(terms.longest()).filter(|longest| *longest < Duration::MAX),
        at_least: None,
        ..*terms
    }
}
