//! What there is: one server with one lock, a few clients, their requests, and what is on its way between them.
//!
//! Time is an order of events. Deadlines have no numbers: that one has passed is an event, which may come whenever
//! the real clocks allow it. Fences and tickets are small numbers, since only their order counts.

use crate::configuration::Budget;

pub type ClientId = usize;
pub type RequestId = usize;
pub type Fence = u8;
pub type Ticket = u8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub server: Server,
    pub clients: Vec<Client>,
    pub requests: Vec<Request>,
    /// What may still go wrong.
    pub budget: Budget,
    pub history: History,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server {
    pub hold: Option<Hold>,
    /// The last one given.
    pub fence: Fence,
    /// In the order of tickets.
    pub queue: Vec<(Ticket, RequestId)>,
    pub next_ticket: Ticket,
    /// By client.
    pub presence: Vec<Presence>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    pub request: RequestId,
    pub fence: Fence,
    /// Granted by somebody else's call, and not claimed yet.
    pub pushed: bool,
    /// Its deadline has passed; no script has run since.
    pub over: bool,
}

/// What the server knows of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Presence {
    /// It has a record, and counts as alive.
    pub record: bool,
    /// A connection is subscribed to its channel here, though perhaps nobody is at its other end any more.
    pub subscriber: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    pub crashed: bool,
    /// It takes its record for opened.
    pub opened: bool,
    pub subscribed: bool,
    /// It has been subscribed before, so the next time is a reconnect.
    pub was_subscribed: bool,
    /// Calls on the live connection, in the order of sending.
    pub calls: Vec<Call>,
    /// Answers on the live connection, in the order of the calls.
    pub replies: Vec<Reply>,
    /// Messages on the live subscription.
    pub pushes: Vec<Grant>,
    /// Calls on closed connections, which may still run, at any time and in any order, and answer nobody.
    pub stuck: Vec<Call>,
}

/// One acquire call of a user, or its continuation under a new id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request {
    pub stage: Stage,
    /// Its place in the queue, as far as its client was told.
    pub ticket: Option<Ticket>,
    /// Some call of it was never answered: it may still run.
    pub loose: bool,
    /// History: the first place that it, or the one that it continues, was told.
    pub arrived: Option<Ticket>,
    /// History: it could not be reached at its turn, or heard of it too late, and has not come back since.
    pub missed_turn: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stage {
    #[default]
    Unused,
    Waiting,
    /// Its user believes to hold the lock: what the lock is about.
    Holding(Fence),
    Releasing,
    /// Never used again.
    Over,
}

impl Stage {
    pub fn believes(self) -> bool {
        matches!(self, Stage::Holding(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    Acquire(Acquire),
    /// Ends the hold of this request under this fence.
    Release(RequestId, Fence),
    /// Ends whatever this request has.
    Withdraw(RequestId),
    Renew(RequestId, Fence),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Acquire {
    pub request: RequestId,
    pub mode: Mode,
    pub ticket: Option<Ticket>,
    /// It has been queued before, as far as its client knows.
    pub again: bool,
    /// Its answer may tell the client that the record is open: nothing has been lost since it was sent.
    pub opens: bool,
    /// History: the request comes back by it after a turn that it missed.
    pub returns: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// Leave the client's record as it is.
    Wait,
    /// Open it.
    Open,
    /// Prolong it; without one the answer is `Gone`.
    Question,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    pub request: RequestId,
    pub fence: Fence,
    pub pushed: bool,
    /// Whoever hears of it now can tell that it is over, or nearly so.
    pub late: bool,
}

/// The answer to an acquire call. The other calls need none: what they do is known once they have run on a connection
/// that lives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reply {
    pub call: Acquire,
    pub answer: Answer,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Granted(Grant),
    Queued {
        ticket: Ticket,
        /// It was not in the queue before, or had a later place.
        enqueued: bool,
        /// The holder's grant, if the holder is another request of the same client.
        sibling: Option<Grant>,
        /// The server sees a subscription of the client.
        seen: bool,
    },
    Gone {
        seen: bool,
    },
}

/// What properties must remember.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// The newest fence that somebody has believed in.
    pub newest_believed: Fence,
    /// Somebody believed in an older one after that.
    pub went_back: bool,
    /// Somebody in the queue was passed over by one who came later.
    pub overtaken: bool,
    /// A script ended with the lock free and a request queued that could be reached.
    pub left_free: bool,
}

impl Client {
    /// Nothing is on its way between this client and the server.
    pub fn is_still(&self) -> bool {
        self.calls.is_empty() && self.replies.is_empty() && self.pushes.is_empty() && self.stuck.is_empty()
    }

    /// The grants that it has not heard of yet, though they are on their way.
    pub fn unheard(&mut self) -> impl Iterator<Item = &mut Grant> {
        let replied = self
            .replies
            .iter_mut()
            .filter_map(|reply| match &mut reply.answer {
                Answer::Granted(grant) => Some(grant),
                Answer::Queued { sibling, .. } => sibling.as_mut(),
                Answer::Gone { .. } => None,
            });
        replied.chain(&mut self.pushes)
    }
}

impl Call {
    pub fn request(&self) -> RequestId {
        match self {
            Call::Acquire(acquire) => acquire.request,
            Call::Release(request, _) | Call::Withdraw(request) | Call::Renew(request, _) => *request,
        }
    }
}
