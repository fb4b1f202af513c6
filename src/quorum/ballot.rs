//! One acquire call over all servers of a quorum, from its first poll to the end of its hold.
//!
//! The ballot asks each server for its lock, as any client of that server does, and under the same ticket
//! everywhere. It is decided when a majority of its votes have one fence. Dropping it withdraws all requests
//! that have no vote.
//!
//! While it has too few votes, it looks at each of them from time to time: a renewal, which a vote needs
//! anyway, whose reply says whether an earlier request is queued at that server. Such a vote is given up. It
//! counts no more; a new request queues under the same ticket, and thus behind the earlier one; once that is
//! queued, the vote is released. A lost vote takes the same way.
//!
//! A ballot that is decided goes on for as long as the hold lasts. It replaces votes that are lost, and asks
//! for those that it has not got, before all who wait. So a hold that lasts outlives one server after the
//! other, as long as a majority is there at any time.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::Quorum;
use super::votes::Votes;
use crate::engine::acquire::{AcquireParams, VoteAttempt, VoteParams, acquire};
use crate::engine::hold::Hold;
use crate::engine::hold::owned::OwnedHold;
use crate::error::{Error, Result};
use crate::fence::Fence;
use crate::store::keys::Keys;
use crate::time::backoff::Backoff;
use crate::time::deadline::LeaseTerms;
use crate::time::server_time::Ticket;

/// When the votes of a ballot that has too few are looked at first. In an undisturbed hand-over, all pushes
/// arrive within this time.
const FIRST_LOOK: Duration = Duration::from_millis(10);

/// The ticket of a holder that asks for a missing vote: before all who wait, since nobody can hold the lock
/// with that vote while this client does.
const BEFORE_ALL: Ticket = Ticket(1);

/// The lock to acquire in a quorum.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) keys: Arc<Keys>,
    pub(crate) channel: Arc<str>,
    pub(crate) terms: LeaseTerms,
}

/// Something that happened at a server.
enum Event {
    Acquired(Result<OwnedHold>),
    /// The attempt was given up here.
    Aborted,
    Lost(Arc<Hold>),
    /// A look at this hold is over.
    Looked {
        hold: Arc<Hold>,
        /// An earlier request is queued.
        earlier: bool,
    },
}

type Pending = Pin<Box<dyn Future<Output = (usize, Event)> + Send>>;

pub(crate) struct Ballot {
    quorum: Arc<Quorum>,
    wanted: Wanted,
    ticket: Ticket,
    floor: Fence,
    votes: Arc<Votes>,
    seats: Vec<Seat>,
    pending: FuturesUnordered<Pending>,
    /// Attempts whose requests are in the queue.
    queued: (
        mpsc::UnboundedSender<VoteAttempt>,
        mpsc::UnboundedReceiver<VoteAttempt>,
    ),
    look_after: Duration,
    look_at: Option<Instant>,
}

/// What the ballot does at one server, besides a vote that counts.
#[derive(Debug)]
struct Seat {
    /// How many requests this server was sent.
    attempts: u64,
    attempt: Option<AbortHandle>,
    /// A vote that counts no more. It is released once the present attempt has its place.
    leaving: Option<OwnedHold>,
    is_looking: bool,
    /// Why the last attempt failed.
    failure: Option<Error>,
    backoff: Backoff,
}

impl Ballot {
    pub(super) fn new(quorum: &Arc<Quorum>, wanted: Wanted) -> Result<Ballot> {
        let (servers, majority) = (quorum.servers.len(), quorum.majority());
        let votes = Votes::new(&wanted.keys.name, servers, majority, quorum.clock());
        let mut seats = Vec::new();
        seats.resize_with(servers, || Seat {
            attempts: 0,
            attempt: None,
            leaving: None,
            is_looking: false,
            failure: None,
            backoff: Backoff::new(),
        });
        let mut ballot = Ballot {
            ticket: quorum.next_ticket(),
            floor: quorum.floor()?,
            quorum: Arc::clone(quorum),
            wanted,
            votes: Arc::new(votes),
            seats,
            pending: FuturesUnordered::new(),
            queued: mpsc::unbounded_channel(),
            look_after: FIRST_LOOK,
            look_at: None,
        };
        for server in 0..servers {
            ballot.ask(server, Duration::ZERO);
        }
        Ok(ballot)
    }

    pub(super) fn votes(&self) -> &Arc<Votes> {
        &self.votes
    }

    /// Asks a server for its vote, after a pause. Gives up the attempt before, if that is under way.
    fn ask(&mut self, server: usize, pause: Duration) {
        let seat = &mut self.seats[server];
        seat.attempts += 1;
        let params = AcquireParams {
            keys: Arc::clone(&self.wanted.keys),
            channel: Arc::clone(&self.wanted.channel),
            terms: terms_of_votes(&self.wanted.terms),
            owner: None,
            vote: Some(VoteParams {
                ticket: self.ticket,
                floor: self.floor,
                queued: self.queued.0.clone(),
                attempt: VoteAttempt {
                    server,
                    number: seat.attempts,
                },
            }),
        };
        let waitlists = Arc::clone(self.quorum.servers[server].waitlists());
        let (abort, registration) = AbortHandle::new_pair();
        if let Some(before) = seat.attempt.replace(abort) {
            before.abort();
        }
        let attempt = async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            acquire(&waitlists, &params, None).await
        };
        self.pending.push(Box::pin(async move {
            let acquired = Abortable::new(attempt, registration).await;
            (server, acquired.map_or(Event::Aborted, Event::Acquired))
        }));
    }

    /// Stops counting a vote, and asks for it again.
    fn begin_again(&mut self, server: usize) {
        let seat = &mut self.seats[server];
        seat.leaving = self.votes.take(server);
        seat.is_looking = false;
        self.ask(server, Duration::ZERO);
    }

    /// Renews a vote, raises its fence, and hears whether an earlier request is queued. This is repeated until
    /// it is answered, or until the vote is lost.
    fn look(&mut self, server: usize, hold: Arc<Hold>, floor: Fence) {
        if std::mem::replace(&mut self.seats[server].is_looking, true) {
            return;
        }
        let background = Arc::clone(self.quorum.servers[server].background());
        let ticket = self.ticket;
        self.pending.push(Box::pin(async move {
            let mut backoff = Backoff::new();
            let mut earlier = false;
            while hold.check().is_ok() {
                match background.look_for_earlier(&hold, floor, ticket).await {
                    Ok(answer) => {
                        earlier = answer;
                        break;
                    }
                    Err(_) => backoff.pause().await,
                }
            }
            (server, Event::Looked { hold, earlier })
        }));
    }

    /// Looks at all votes, since there are too few.
    fn look_at_all(&mut self) {
        self.look_after = (2 * self.look_after).min(self.wanted.terms.grant() / 3);
        self.look_at = None;
        for (server, hold) in self.votes.holds() {
            let fence = hold.fence();
            self.look(server, hold, fence);
        }
    }

    /// Handles what happened at a server. Fails if the whole call does.
    fn on(&mut self, server: usize, event: Event) -> Result<()> {
        match event {
            Event::Acquired(Ok(vote)) => {
                let hold = Arc::clone(vote.hold());
                self.pending.push(Box::pin(async move {
                    hold.lost().await;
                    (server, Event::Lost(hold))
                }));
                self.has_its_place(server);
                self.seats[server].attempt = None;
                self.votes.put(server, vote);
                (self.look_after, self.look_at) = (FIRST_LOOK, None);
            }
            Event::Acquired(Err(error @ (Error::Unavailable(_) | Error::Refused(_)))) => {
                self.seats[server].failure = Some(error);
                self.check_failures()?;
                let pause = self.seats[server].backoff.step();
                self.ask(server, pause);
            }
            Event::Acquired(Err(error)) => return Err(error),
            Event::Aborted => {}
            Event::Lost(hold) => {
                if self.votes.counts(server, &hold) {
                    self.begin_again(server);
                }
            }
            Event::Looked { hold, earlier } => {
                if self.votes.counts(server, &hold) {
                    self.seats[server].is_looking = false;
                    if earlier && self.votes.are_too_few() {
                        self.begin_again(server);
                    }
                }
            }
        }
        Ok(())
    }

    /// The present attempt is in the queue, or has the vote. Releases the vote before.
    fn has_its_place(&mut self, server: usize) {
        let seat = &mut self.seats[server];
        seat.leaving = None;
        seat.failure = None;
        seat.backoff = Backoff::new();
    }

    /// Fails if so many servers have failed that the others are no majority.
    fn check_failures(&self) -> Result<()> {
        let failures: Vec<_> = self
            .seats
            .iter()
            .filter_map(|seat| seat.failure.as_ref())
            .collect();
        if self.seats.len() - failures.len() >= self.quorum.majority() {
            return Ok(());
        }
        let refused = failures.iter().find(|error| matches!(error, Error::Refused(_)));
        Err((**refused.unwrap_or(&failures[0])).clone())
    }

    /// Returns the fence of the hold, if the ballot is decided. If not, plans what to do about it.
    fn decide(&mut self) -> Option<Fence> {
        if let Some(fence) = self.votes.agreed() {
            return Some(fence);
        }
        let holds = self.votes.holds();
        let largest = holds.iter().map(|(_, hold)| hold.fence()).max()?;
        if self.votes.are_too_few() {
            let look_at = Instant::now() + self.look_after;
            self.look_at.get_or_insert(look_at);
            return None;
        }
        for (server, hold) in holds {
            if hold.fence() < largest {
                self.look(server, hold, largest);
            }
        }
        None
    }

    /// Waits for whatever happens next, and handles it.
    async fn step(&mut self) -> Result<()> {
        let look_at = self.look_at;
        tokio::select! {
            biased;
            Some(VoteAttempt { server, number }) = self.queued.1.recv() => {
                if number == self.seats[server].attempts {
                    self.has_its_place(server);
                }
            }
            Some((server, event)) = self.pending.next() => self.on(server, event)?,
            () = sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => self.look_at_all(),
        }
        Ok(())
    }

    /// Runs until the ballot is decided.
    pub(super) async fn decided(&mut self) -> Result<Fence> {
        loop {
            if let Some(fence) = self.decide() {
                for (_, hold) in self.votes.holds() {
                    hold.lengthen(self.wanted.terms.lease());
                }
                self.look_at = None;
                return Ok(fence);
            }
            self.step().await?;
        }
    }

    /// Keeps the votes of a hold together until it is over.
    pub(super) async fn keep(mut self) {
        let votes = Arc::clone(&self.votes);
        let first_renewal = Instant::now() + self.wanted.terms.grant() / 3;
        let mut asks_first = false;
        while votes.check().is_ok() {
            tokio::select! {
                biased;
                _ = votes.lost() => {}
                // One server after the other may fail. An error of one of them does not end the hold.
                _ = self.step() => {}
                () = sleep_until(first_renewal), if !asks_first => {
                    asks_first = true;
                    self.ticket = BEFORE_ALL;
                    for server in self.votes.missing() {
                        self.ask(server, Duration::ZERO);
                    }
                }
            }
            self.look_at = None;
            for (_, hold) in votes.holds() {
                hold.lengthen(self.wanted.terms.lease());
            }
        }
        // What is left of the votes is of no use.
        drop(votes.end());
    }
}

/// Until there is a majority, a vote lasts for the claim window only. So a client that dies with too few
/// votes does not hold up the others for a whole lease.
fn terms_of_votes(terms: &LeaseTerms) -> LeaseTerms {
    LeaseTerms {
        length: terms.grant(),
        fixed: false,
        max_hold: Some(terms.longest()).filter(|longest| *longest < Duration::MAX),
        claim_window: terms.claim_window,
    }
}
