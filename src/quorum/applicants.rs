//! Overload control: which of a client's callers have a ballot, and which wait for one in the client.
//!
//! The rule is that of a lock on one server ([`admission`](crate::engine::waitlist::admission)). Here it
//! counts ballots and not requests: all votes of a ballot are asked for together, because a ballot that waits
//! in the queue of one server and in the client for another blocks both.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Arrival, Quorum, Wanted, no_majority};
use crate::engine::acquire::{replies_read, timed_out};
use crate::engine::waitlist::admission::{Admission, Place};
use crate::error::{Error, Result};
use crate::options::{MAX_WAITLISTS_KEPT, WAITLIST_KEPT};
use crate::store::keys::Keys;
use crate::sync::locked;
use crate::time::clock::LocalTime;

/// The locks that callers of this client wait for, by channel.
#[derive(Debug, Default)]
pub(super) struct Applicants(DashMap<Arc<str>, Arc<Callers>>);

/// The callers that wait for one lock. If some of them gave up, this is kept for a while after the last of
/// them has left.
#[derive(Debug)]
struct Callers {
    channel: Arc<str>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// How many ballots are not decided.
    ballots: usize,
    /// The applicants, and the rule that admits them. `None` until the first caller has given up.
    admission: Option<Box<Admission<Applicant>>>,
    /// When the last caller left. Has no meaning while there are callers.
    idle_since: LocalTime,
}

/// A caller that waits in the client until it is admitted.
#[derive(Debug)]
struct Applicant {
    caller: Caller,
    admit: oneshot::Sender<Result<Admitted>>,
}

#[derive(Clone, Debug)]
struct Caller {
    quorum: Arc<Quorum>,
    callers: Arc<Callers>,
    arrived: LocalTime,
    is_bounded: bool,
}

/// The right to a ballot. Dropping it reports that the caller has given up, and admits the next one.
#[derive(Debug)]
pub(super) struct Admitted {
    caller: Caller,
    since: LocalTime,
    is_granted: bool,
}

/// The caller's side of an applicant. An applicant that is dropped leaves. If it is admitted meanwhile, its
/// message is dropped too, and with it the right to a ballot.
struct Application {
    caller: Caller,
    place: Place,
    admitted: oneshot::Receiver<Result<Admitted>>,
}

/// What a caller becomes at its arrival.
enum Entered {
    Admitted(Admitted),
    Applicant(Application),
}

impl Quorum {
    /// Waits until this caller may have a ballot, or until its bound.
    pub(super) async fn admit(self: &Arc<Self>, wanted: &Wanted, arrival: Arrival) -> Result<Admitted> {
        let mut application = match self.enter(wanted, arrival)? {
            Entered::Admitted(admitted) => return Ok(admitted),
            Entered::Applicant(application) => application,
        };
        let admitted = match wanted.until {
            None => (&mut application.admitted).await,
            Some(until) => match timeout_at(until, &mut application.admitted).await {
                Ok(admitted) => admitted,
                Err(_) => return Err(self.bound_over(&wanted.keys, &wanted.channel, arrival.at).await),
            },
        };
        // Every applicant that leaves the map is sent a message.
        admitted.unwrap_or(Err(Error::Closed))
    }

    /// Admits a caller at once, or makes it an applicant. Fails if the client is closed.
    fn enter(self: &Arc<Self>, wanted: &Wanted, arrival: Arrival) -> Result<Entered> {
        let channel = &wanted.channel;
        let make = || Callers::new(Arc::clone(channel), arrival.at);
        let entry = self.applicants.0.entry(Arc::clone(channel));
        // The entry is locked. Closing marks the client first, and then refuses the applicants that it finds.
        self.client().check_open()?;
        let mut callers = entry.or_insert_with(make);
        if callers.are_outdated(arrival.at) {
            *callers = make();
        }
        let caller = Caller {
            quorum: Arc::clone(self),
            callers: Arc::clone(&callers),
            arrived: arrival.at,
            is_bounded: wanted.until.is_some(),
        };
        let mut state = locked(&callers.state);
        let ballots = state.ballots;
        let Some(admission) = state.admission.as_mut().filter(|rule| !rule.is_open(ballots)) else {
            state.ballots += 1;
            return Ok(Entered::Admitted(Admitted::new(caller, arrival.at)));
        };
        let until = (wanted.until).map(|until| until.saturating_duration_since(Instant::now()));
        let gives_up = admission.gives_up(arrival.at, until.map(|left| arrival.at.after(left)));
        let (admit, admitted) = oneshot::channel();
        let applicant = Applicant {
            caller: caller.clone(),
            admit,
        };
        Ok(Entered::Applicant(Application {
            place: admission.wait(gives_up, applicant),
            caller,
            admitted,
        }))
    }

    /// The error of a wait whose bound is over, once the replies that have come are read.
    pub(super) async fn bound_over(&self, keys: &Keys, channel: &str, arrived: LocalTime) -> Error {
        let over = || self.over(keys, channel, arrived);
        replies_read(|| !matches!(over(), Error::Timeout { .. })).await;
        over()
    }

    /// The error of a wait that is over, from what all servers have said since it began.
    pub(super) fn over(&self, keys: &Keys, channel: &str, arrived: LocalTime) -> Error {
        let errors =
            (0..self.servers.len()).filter_map(|server| self.unheard(server, keys, channel, arrived));
        self.timed_out(&errors.collect::<Vec<_>>(), arrived, self.retry_after(channel))
    }

    /// Why a server has said nothing about a lock since this time, if it has not.
    pub(super) fn unheard(
        &self,
        server: usize,
        keys: &Keys,
        channel: &str,
        since: LocalTime,
    ) -> Option<Error> {
        let failure = self.servers[server].waitlists().why_unheard(keys, channel, since);
        failure.map(Error::from)
    }

    /// The error of a wait whose bound is over. If too many servers have only failed, with these errors,
    /// nobody knows whether the lock is free.
    pub(super) fn timed_out(&self, errors: &[Error], arrived: LocalTime, free_in: Duration) -> Error {
        let answering = self.servers.len() - errors.len();
        if answering < self.majority() {
            return no_majority(self.servers.len(), answering, errors);
        }
        timed_out(self.client(), arrived, free_in)
    }

    /// The time until a majority of the servers can be free, as far as is known.
    pub(super) fn retry_after(&self, channel: &str) -> Duration {
        let left = (self.servers.iter()).map(|server| server.waitlists().free_in(channel));
        let mut left: Vec<_> = left.collect();
        left.sort_unstable();
        left[self.majority() - 1].max(Duration::from_millis(1))
    }
}

impl Applicants {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    #[cfg(test)]
    pub(super) fn are_idle(&self) -> bool {
        self.0.iter().all(|callers| locked(&callers.state).is_idle())
    }

    /// Sends an error to all who wait for a ballot.
    pub(super) fn refuse_all(&self, error: &Error) {
        let all: Vec<_> = self.0.iter().map(|callers| Arc::clone(&callers)).collect();
        for callers in all {
            callers.refuse(error);
        }
    }

    /// Forgets the locks that nobody waits for, if there are too many.
    fn keep_few(&self) {
        if self.0.len() > MAX_WAITLISTS_KEPT {
            self.0.retain(|_, callers| !locked(&callers.state).is_idle());
        }
    }

    /// Forgets a lock that nobody waits for, unless there is something to remember.
    fn discard(&self, callers: &Callers) {
        self.0.remove_if(&callers.channel, |_, callers| {
            let state = locked(&callers.state);
            state.is_idle() && state.admission.is_none()
        });
    }
}

impl Callers {
    fn new(channel: Arc<str>, now: LocalTime) -> Arc<Callers> {
        let state = State {
            ballots: 0,
            admission: None,
            idle_since: now,
        };
        Arc::new(Callers {
            channel,
            state: Mutex::new(state),
        })
    }

    /// Whether nobody has waited for so long that the earlier callers say nothing of those that come.
    fn are_outdated(&self, now: LocalTime) -> bool {
        let state = locked(&self.state);
        state.is_idle() && now.since(state.idle_since) > WAITLIST_KEPT
    }

    /// Sends an error to all applicants.
    fn refuse(&self, error: &Error) {
        let applicants = locked(&self.state).applicants();
        for applicant in applicants {
            // A receiver that is gone does not need the error.
            let _ = applicant.admit.send(Err(error.clone()));
        }
    }
}

impl State {
    fn next(&mut self, now: LocalTime) -> Option<Applicant> {
        let applicant = self.admission.as_mut()?.next(now, self.ballots)?;
        self.ballots += 1;
        Some(applicant)
    }

    fn applicants(&mut self) -> Vec<Applicant> {
        let applicants = self.admission.as_mut().map(|admission| admission.drain());
        applicants.into_iter().flatten().collect()
    }

    fn is_idle(&self) -> bool {
        let nobody_waits = (self.admission.as_ref()).is_none_or(|admission| admission.is_empty());
        self.ballots == 0 && nobody_waits
    }
}

impl Caller {
    /// Takes the caller out, and admits those that have a place then.
    fn leave(&self, take_out: impl FnOnce(&mut State, LocalTime)) {
        let now = self.quorum.client().now();
        let mut state = locked(&self.callers.state);
        take_out(&mut state, now);
        state.idle_since = now;
        let admitted: Vec<_> = std::iter::from_fn(|| state.next(now)).collect();
        drop(state);
        for Applicant { caller, admit } in admitted {
            // If the receiver is gone, the right to a ballot comes back, and is dropped.
            drop(admit.send(Ok(Admitted::new(caller, now))));
        }
        self.quorum.applicants.discard(&self.callers);
    }

    /// Learns from a caller that gave up. Others may have as much patience.
    fn lost_patience(&self, admission: &mut Admission<Applicant>, now: LocalTime) {
        if !self.is_bounded {
            admission.lost_patience(now.since(self.arrived));
        }
    }
}

impl Admitted {
    fn new(caller: Caller, since: LocalTime) -> Admitted {
        Admitted {
            caller,
            since,
            is_granted: false,
        }
    }

    /// Reports that the ballot is decided.
    pub(super) fn granted(mut self) {
        self.is_granted = true;
    }

    /// Reports that the ballot has failed. Unless its time was over, the applicants' ballots would fail in
    /// the same way, so they get the same error.
    pub(super) fn failed(self, error: &Error) {
        if !matches!(error, Error::Timeout { .. }) {
            self.caller.callers.refuse(error);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if !self.is_granted {
            self.caller.quorum.applicants.keep_few();
        }
        self.caller.leave(|state, now| {
            state.ballots -= 1;
            let waited = now.since(self.since);
            if !self.is_granted {
                let admission = state.admission.get_or_insert_default();
                admission.gave_up(waited);
                self.caller.lost_patience(admission, now);
            } else if let Some(admission) = &mut state.admission {
                admission.granted(waited);
            }
        });
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.caller.leave(|state, now| {
            let remove =
                |admission: &mut &mut Box<Admission<Applicant>>| admission.remove(self.place).is_some();
            if let Some(admission) = state.admission.as_mut().take_if(remove) {
                self.caller.lost_patience(admission, now);
            }
        });
    }
}
