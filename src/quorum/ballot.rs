//! One acquire call over all servers of a quorum, from its first poll to the end of its hold.
//!
//! The ballot asks each server for its lock, as any client of that server does, and under the same ticket
//! everywhere. It is decided when a majority of its votes have one fence. Dropping it withdraws all requests
//! that have no vote.
//!
//! While it has too few votes, it [looks](super::look) at each of them from time to time, to hear whether an
//! earlier request is queued at that server. Such a vote is given up. It counts no more; a new request queues
//! under the same ticket, and thus behind the earlier one; once that is queued, the vote is released. A lost
//! vote takes the same way. A ballot that [reaches](super::reach) too few servers leaves them.
//!
//! A ballot that is decided goes on for as long as the hold lasts ([repair](super::repair)).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::seat::{Failures, Seat, SeatAnswer};
use super::votes::Votes;
use super::{Quorum, no_majority};
use crate::engine::acquire::{AcquireParams, Arrival, Tried, VoteAttempt, VoteParams, acquire};
use crate::engine::counters::count;
use crate::engine::floor::Floor;
use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::time::clock::LocalTime;
use crate::time::deadline::LeaseTerms;
use crate::time::server_time::Ticket;

/// How many numbers of requests a ballot has to itself. A request that waits for ever, at a server that is
/// away, asks again no more than once a second.
const REQUESTS_OF_A_BALLOT: u64 = 1 << 24;

/// When the votes of a ballot that has too few are looked at first. In an undisturbed hand-over, all pushes
/// arrive within this time.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(10);

/// The ballot to which the request of this number belongs.
pub(super) fn ballot_of(request: u64) -> u64 {
    request / REQUESTS_OF_A_BALLOT
}

/// Something that happened at a server.
pub(super) enum Event {
    Acquired(Result<OwnedHold>),
    /// The server was asked without waiting.
    Tried(Result<Tried<OwnedHold>>),
    /// The attempt was given up here.
    Aborted,
    Lost(Arc<Hold>),
    /// A look at this hold is over.
    Looked {
        hold: Arc<Hold>,
        /// Whether an earlier request is queued, or why the server does not say so.
        earlier: Result<bool>,
    },
}

type Pending = Pin<Box<dyn Future<Output = (usize, Event)> + Send>>;

pub(crate) struct Ballot {
    pub(super) quorum: Arc<Quorum>,
    pub(super) params: AcquireParams,
    /// When the caller gives up. `None` means never.
    pub(super) until: Option<Instant>,
    /// Which of this client's ballots it is.
    pub(super) number: u64,
    /// When the caller began to wait.
    pub(super) arrived: LocalTime,
    /// Numbers the requests.
    numbers: Arc<AtomicU64>,
    pub(super) ticket: Ticket,
    /// The least fences that are asked for.
    pub(super) floor: Floor,
    votes: Arc<Votes>,
    pub(super) seats: Vec<Seat>,
    pub(super) pending: FuturesUnordered<Pending>,
    /// Attempts whose requests are in the queue.
    queued: (
        mpsc::UnboundedSender<VoteAttempt>,
        mpsc::UnboundedReceiver<VoteAttempt>,
    ),
    pub(super) look_after: Duration,
    pub(super) look_at: Option<Instant>,
}

impl Ballot {
    /// On the heap, since it is moved from the caller to the task that goes on with it.
    pub(super) fn new(
        quorum: &Arc<Quorum>,
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
            ticket: arrival.ticket.unwrap_or_else(|| quorum.next_ticket()),
            floor,
            quorum: Arc::clone(quorum),
            params,
            until,
            votes: Arc::new(votes),
            seats,
            pending: FuturesUnordered::new(),
            queued: mpsc::unbounded_channel(),
            look_after: FIRST_LOOK,
            look_at: None,
        }))
    }

    pub(super) fn votes(&self) -> &Arc<Votes> {
        &self.votes
    }

    /// Asks a server for its vote, after a pause. Gives up the attempt before, if that is under way.
    pub(super) fn ask(&mut self, server: usize, pause: Duration) {
        let params = self.next_params(server);
        let (until, ticket) = (self.until, Some(self.ticket));
        let waitlists = Arc::clone(self.quorum.servers[server].waitlists());
        let (abort, registration) = AbortHandle::new_pair();
        if let Some(before) = self.seats[server].attempt.replace(abort) {
            before.abort();
        }
        let attempt = async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            let at = waitlists.client().now();
            acquire(&waitlists, &params, Arrival { at, ticket }, until).await
        };
        let attempt = Abortable::new(attempt, registration);
        self.pending.push(Box::pin(attempt.map(move |acquired| {
            (server, acquired.map_or(Event::Aborted, Event::Acquired))
        })));
    }

    /// The next request for the vote of a server.
    pub(super) fn next_params(&mut self, server: usize) -> AcquireParams {
        let seat = &mut self.seats[server];
        seat.attempts += 1;
        AcquireParams {
            terms: terms_of_votes(&self.params.terms),
            vote: Some(Box::new(VoteParams {
                floor: self.floor.clone(),
                numbers: Arc::clone(&self.numbers),
                queued: self.queued.0.clone(),
                attempt: VoteAttempt {
                    server,
                    number: seat.attempts,
                },
            })),
            ..self.params.clone()
        }
    }

    /// Stops counting a vote, and asks for it again.
    pub(super) fn begin_again(&mut self, server: usize) {
        let seat = &mut self.seats[server];
        seat.leaving = self.votes.take(server);
        self.ask(server, Duration::ZERO);
    }

    /// Counts a vote from now on, until it is lost.
    fn add_vote(&mut self, server: usize, vote: OwnedHold) {
        let hold = Arc::clone(vote.hold());
        self.pending.push(Box::pin(async move {
            hold.lost().await;
            (server, Event::Lost(hold))
        }));
        self.seats[server].has_its_place();
        self.seats[server].attempt = None;
        self.seats[server].is_looking = false;
        self.votes.put(server, vote);
        (self.look_after, self.look_at) = (FIRST_LOOK, None);
        if self.is_hold() && self.seats[server].attempts > 1 {
            count(&self.quorum.counters.repaired);
        }
    }

    /// Handles what happened at a server. Fails if the whole call does.
    pub(super) fn on(&mut self, server: usize, event: Event) -> Result<()> {
        match event {
            Event::Acquired(Ok(vote)) | Event::Tried(Ok(Tried::Held(vote))) => self.add_vote(server, vote),
            Event::Acquired(Err(error @ (Error::Unavailable(_) | Error::Refused(_)))) => {
                self.failed(server, error)?;
            }
            Event::Acquired(Err(error @ Error::Timeout { .. })) => {
                self.seats[server].attempt = None;
                self.seats[server].answer = SeatAnswer::Failed(error);
                self.check_failures()?;
            }
            Event::Acquired(Err(error)) => return Err(error),
            // Once the try is over, the first renewal asks for what is missing.
            Event::Aborted | Event::Tried(_) => {}
            Event::Lost(hold) => {
                if self.votes.counts(server, &hold) {
                    if self.is_hold() {
                        self.repair(server);
                    } else {
                        self.begin_again(server);
                    }
                }
            }
            Event::Looked { hold, earlier } => self.looked(server, &hold, earlier)?,
        }
        Ok(())
    }

    /// A server gives no vote. Asks it again after a pause. Fails if it is one of so many that the others are
    /// no majority.
    pub(super) fn failed(&mut self, server: usize, error: Error) -> Result<()> {
        let seat = &mut self.seats[server];
        seat.answer = SeatAnswer::Failed(error);
        let pause = seat.backoff.step();
        self.ask(server, pause);
        self.check_failures()
    }

    /// Fails once the remaining servers cannot form a majority.
    fn check_failures(&self) -> Result<()> {
        let (quorum, params) = (&self.quorum, &self.params);
        Err(match Failures::of(&self.seats, quorum.majority()) {
            Failures::Few => return Ok(()),
            Failures::Many { errors, answering } => no_majority(self.seats.len(), answering, &errors),
            Failures::BoundOver {
                mut errors,
                outstanding,
                free_in,
            } => {
                let unheard = |server| quorum.unheard(server, &params.keys, &params.channel, self.arrived);
                errors.extend(outstanding.into_iter().filter_map(unheard));
                quorum.timed_out(&errors, self.arrived, free_in)
            }
        })
    }

    /// Returns the fence of the hold, if the ballot is decided. If not, plans what to do about it.
    pub(super) fn decide(&mut self) -> Option<Fence> {
        let agreed = self.votes.agreed();
        if agreed.is_none() {
            self.plan();
        }
        agreed
    }

    /// Plans what to do about a ballot that is not decided.
    fn plan(&mut self) {
        let holds = self.votes.holds();
        if self.votes.are_too_few() {
            if !holds.is_empty() || self.seats.iter().any(|seat| seat.is_left) {
                let look_at = Instant::now() + self.look_after;
                self.look_at.get_or_insert(look_at);
            }
        } else if let Some(largest) = holds.iter().map(|(_, hold)| hold.fence()).max() {
            self.raise_to(largest);
        }
    }

    /// Waits for whatever happens next, and handles it.
    pub(super) async fn step(&mut self) -> Result<()> {
        let look_at = self.look_at;
        tokio::select! {
            biased;
            Some(VoteAttempt { server, number }) = self.queued.1.recv() => {
                // An attempt may have ended in the same poll in which it got its place.
                let seat = &mut self.seats[server];
                if seat.attempt.is_some() && number == seat.attempts {
                    seat.has_its_place();
                }
            }
            Some((server, event)) = self.pending.next() => self.on(server, event)?,
            () = sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => self.look_at_all(),
        }
        Ok(())
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
            self.leave_or_come_back();
            self.plan();
            self.step().await?;
        }
    }
}

/// Until there is a majority, a vote lasts for the claim window only. So a client that dies with too few
/// votes does not hold up the others for a whole lease.
fn terms_of_votes(terms: &LeaseTerms) -> LeaseTerms {
    LeaseTerms {
        length: terms.grant(),
        fixed: false,
        max_hold: Some(terms.longest()).filter(|longest| *longest < Duration::MAX),
        at_least: None,
        claim_window: terms.claim_window,
    }
}
