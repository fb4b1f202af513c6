//! How callers enter and leave a waitlist. Some of them are applicants: they wait in the client until they
//! are admitted to the server's queue ([`admission`](crate::engine::waitlist::admission)). Of an applicant,
//! only its terms, its standing and the channel to its caller are kept.

use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker};

use tokio::sync::oneshot;

use super::{Answered, State, WaitOutcome, Waiter, Waitlist};
use crate::engine::floor::Floor;
use crate::engine::metrics::Group;
use crate::engine::pending_calls::PendingCalls;
use crate::engine::waitlist::admission::{Admission, Place};
use crate::error::{Error, Result};
use crate::store::ids::RequestId;
use crate::sync::locked;
use crate::time::clock::LocalTime;
use crate::time::deadline::LeaseTerms;
use crate::time::deadline_queue::GivesUp;
use crate::time::server_time::Ticket;

/// When a request arrived, how long its caller waits, its place in the queue, and the group of its lock.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Standing {
    /// When its caller began to wait.
    pub(in crate::engine) arrived: LocalTime,
    /// When its caller gives up. `None` if that is unknown.
    pub(in crate::engine) until: Option<LocalTime>,
    /// The place of the request in the queue, if it is known. It is the place of an earlier request, which
    /// this one takes over, follows from the time of arrival, or is the same on all servers of a quorum.
    pub(in crate::engine) ticket: Option<Ticket>,
    /// The request takes the place of one that was queued.
    pub(in crate::engine) was_queued: bool,
    /// The request is admitted at once, because it takes the place of an earlier one, because its owner may
    /// already hold the lock, or because other servers of a quorum have it already.
    pub(in crate::engine) is_admitted: bool,
    /// In a quorum.
    pub(in crate::engine) floor: Option<Floor>,
    /// In which its hold is counted.
    pub(in crate::engine) group: Group,
}

/// What a caller becomes when it enters a waitlist.
#[derive(Debug)]
pub(in crate::engine) enum Entered {
    Waiter(Joined),
    Applicant(Box<Application>),
}

/// The caller's side of a waiter.
#[derive(Debug)]
pub(in crate::engine) struct Joined {
    pub(in crate::engine) request: RequestId,
    pub(super) calls: Arc<PendingCalls>,
    pub(in crate::engine) outcome: oneshot::Receiver<WaitOutcome>,
}

/// A caller that waits in the client until it is admitted.
#[derive(Debug)]
pub(super) struct Applicant {
    terms: LeaseTerms,
    standing: Standing,
    admit: oneshot::Sender<Result<Admitted>>,
}

/// The caller's side of an applicant.
#[derive(Debug)]
pub(in crate::engine) struct Application {
    place: Place,
    standing: Standing,
    pub(in crate::engine) admitted: oneshot::Receiver<Result<Admitted>>,
}

/// An applicant that has become a waiter, and its first call, which is under way.
#[derive(Debug)]
pub(in crate::engine) struct Admitted {
    pub(in crate::engine) waiter: Joined,
    /// `None` if the wait is already over.
    pub(in crate::engine) call: Option<Call>,
}

/// A call that asks for a waiter. On the heap, so that a hundred thousand sleeping waiters do not carry it
/// along.
pub(in crate::engine) struct Call(Pin<Box<dyn Future<Output = Answered> + Send>>);

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Call").finish_non_exhaustive()
    }
}

impl Call {
    pub(in crate::engine) async fn answered(self) -> Answered {
        self.0.await
    }
}

impl State {
    /// Takes out all applicants.
    pub(super) fn applicants(&mut self) -> Vec<Applicant> {
        let applicants = self.admission.as_mut().map(|admission| admission.drain());
        applicants.into_iter().flatten().collect()
    }

    /// Takes out the applicants that are admitted now.
    fn admitted(&mut self, now: LocalTime) -> Vec<Applicant> {
        let waiters = self.waiters.len();
        let admission = self.admission.as_mut();
        let admitted =
            admission.map(|admission| (waiters..).map_while(|waiters| admission.next(now, waiters)));
        admitted.into_iter().flatten().collect()
    }

    fn gives_up(&self, standing: &Standing) -> GivesUp {
        let Standing { arrived, until, .. } = *standing;
        match &self.admission {
            Some(admission) => admission.gives_up(arrived, until),
            None => until.map_or(GivesUp::Unknown, GivesUp::At),
        }
    }

    pub(super) fn join(
        &mut self,
        now: LocalTime,
        request: RequestId,
        terms: LeaseTerms,
        standing: Standing,
    ) -> Joined {
        let calls = PendingCalls::new(terms.lease(), self.gives_up(&standing), standing.floor.clone());
        let (outcome, receiver) = oneshot::channel();
        let waiter = Box::new(Waiter {
            request: request.clone(),
            terms,
            was_queued: standing.was_queued,
            standing,
            joined: now,
            calls: Arc::clone(&calls),
            outcome,
        });
        self.waiters.insert(request.number(), waiter);
        Joined {
            request,
            calls,
            outcome: receiver,
        }
    }
}

impl Waitlist {
    /// Adds a waiter, or an applicant if admission is closed. Fails if the client is closed.
    pub(in crate::engine) fn enter(
        &self,
        terms: LeaseTerms,
        standing: Standing,
        next_request: impl FnOnce() -> RequestId,
    ) -> Result<Entered> {
        let state = &mut *locked(&self.state);
        self.client.check_open()?;
        let waiters = state.waiters.len();
        let closed =
            |admission: &&mut Box<Admission<Applicant>>| !standing.is_admitted && !admission.is_open(waiters);
        if let Some(admission) = state.admission.as_mut().filter(closed) {
            let (admit, admitted) = oneshot::channel();
            let applicant = Applicant {
                terms,
                standing: standing.clone(),
                admit,
            };
            let gives_up = admission.gives_up(standing.arrived, standing.until);
            return Ok(Entered::Applicant(Box::new(Application {
                place: admission.wait(gives_up, applicant),
                standing,
                admitted,
            })));
        }
        let request = next_request();
        Ok(Entered::Waiter(state.join(
            standing.arrived,
            request,
            terms,
            standing,
        )))
    }

    /// Gives tickets to applicants that are being admitted, in the order of their arrival. A ticket is later
    /// than those of all requests of this client that arrived before. Otherwise it is the server time of the
    /// arrival, as far as that is known here. While the ticket of an earlier request is unknown, the
    /// applicant gets none. The server then queues it at the end, behind that request.
    pub(super) fn give_places<'a>(
        &self,
        now: LocalTime,
        state: &State,
        admitted: impl IntoIterator<Item = &'a mut Standing>,
    ) {
        let server = self.client.store.server_of(&self.keys);
        let now_us = 1000 * self.client.clocks.server_time(server).ms();
        let mut others: Vec<_> = (state.waiters.values())
            .map(|waiter| (waiter.standing.arrived, waiter.standing.ticket))
            .collect();
        others.sort_unstable_by_key(|(arrived, _)| *arrived);
        let mut others = others.into_iter().peekable();
        let mut least = Some(0);
        for standing in admitted {
            while let Some((_, ticket)) = others.next_if(|(arrived, _)| *arrived <= standing.arrived) {
                least = least.zip(ticket).map(|(least, before)| least.max(before.0 + 1));
            }
            let waited = u64::try_from(now.since(standing.arrived).as_micros()).unwrap_or(u64::MAX);
            let ticket = least.map(|least| least.max(now_us.saturating_sub(waited)));
            standing.ticket = ticket.map(Ticket);
            least = ticket.map(|ticket| ticket + 1);
        }
    }

    /// Takes out a request that gives up, and withdraws it. Returns when the lock can next be free, if the
    /// request was still in the waitlist.
    pub(in crate::engine) fn quit(&self, waiter: &Joined) -> Option<Option<LocalTime>> {
        // A closed client keeps running until the background task knows of the withdrawal.
        let _running = self.background.keep_running();
        let mut state = locked(&self.state);
        let Waiter { standing, joined, .. } = *state.waiters.remove(&waiter.request.number())?;
        let admission = state.admission.get_or_insert_default();
        admission.gave_up(self.client.now().since(joined));
        self.learn_patience(admission, &standing);
        let free_at = state.free_at;
        self.left(state);
        self.background
            .withdraw(&self.keys, &waiter.request, true, &waiter.calls);
        Some(free_at)
    }

    /// Removes an applicant that gives up, even if it has just been admitted. Returns when the lock can next
    /// be free, as far as is known.
    pub(in crate::engine) fn cancel(&self, mut application: Application) -> Option<LocalTime> {
        let mut state = locked(&self.state);
        let free_at = state.free_at;
        let remove =
            |admission: &mut &mut Box<Admission<Applicant>>| admission.remove(application.place).is_some();
        if let Some(admission) = state.admission.as_mut().take_if(remove) {
            self.learn_patience(admission, &application.standing);
            return free_at;
        }
        drop(state);
        // Another thread admits this applicant. Its message has either arrived by now, or can no longer be
        // sent.
        application.admitted.close();
        if let Ok(Ok(Admitted { waiter, .. })) = application.admitted.try_recv() {
            self.quit(&waiter);
        }
        free_at
    }

    /// Learns from a caller that gave up. Others may have as much patience.
    fn learn_patience(&self, admission: &mut Admission<Applicant>, standing: &Standing) {
        if standing.until.is_none() {
            let waited = self.client.now().since(standing.arrived);
            admission.lost_patience(waited);
        }
    }

    /// Sends an error to all applicants.
    pub(in crate::engine) fn refuse_applicants(&self, error: &Error) {
        let applicants = locked(&self.state).applicants();
        refuse(applicants, error);
    }

    /// Called after waiters have left. Admits the next applicants.
    pub(super) fn left(&self, mut state: MutexGuard<'_, State>) {
        let now = self.client.now();
        if state.waiters.is_empty() {
            state.empty_since = Some(now);
        }
        let mut admitted = state.admitted(now);
        if admitted.is_empty() {
            return;
        }
        admitted.sort_by_key(|applicant| applicant.standing.arrived);
        let standings = admitted.iter_mut().map(|applicant| &mut applicant.standing);
        self.give_places(now, &state, standings);
        let admitted: Vec<_> = (admitted.into_iter())
            .map(
                |Applicant {
                     terms,
                     standing,
                     admit,
                 }| {
                    let request = self.client.next_request(&terms, None);
                    (admit, state.join(now, request, terms, standing))
                },
            )
            .collect();
        drop(state);
        for (admit, waiter) in admitted {
            let call = self.start(waiter.request.number());
            if let Err(Ok(gone)) = admit.send(Ok(Admitted { waiter, call })) {
                self.quit(&gone.waiter);
            }
        }
    }

    /// The next call of a request, unless it has left the waitlist, or the bound of its caller is over. The
    /// call is sent at its first poll.
    pub(in crate::engine) fn call(&self, number: u64) -> Option<Call> {
        let waitlist = self.this.upgrade()?;
        let prepared = self.prepare(number, false)?;
        Some(Call(Box::pin(async move { waitlist.send(prepared).await })))
    }

    /// Like `call`, but sends the call at once. So it is sent as soon as there is a place, before the release
    /// of the request that made the place, whichever of their tasks runs first.
    fn start(&self, number: u64) -> Option<Call> {
        let mut call = self.call(number)?;
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(answered) = self.client.runtime.poll(call.0.as_mut(), &mut context) {
            call = Call(Box::pin(ready(answered)));
        }
        Some(call)
    }
}

/// Sends an error to these applicants.
pub(super) fn refuse(applicants: Vec<Applicant>, error: &Error) {
    for applicant in applicants {
        // A receiver that is gone does not need the error.
        let _ = applicant.admit.send(Err(error.clone()));
    }
}
