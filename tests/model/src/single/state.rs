//! The state: one server with one lock or its permits, a few clients, their requests, and what is under way
//! between them.
//!
//! Time is an order of events. Deadlines have no numbers: the passing of a deadline is an event, which may
//! come whenever the real clocks allow it. Fences and tickets are small numbers, because only their order
//! counts.

use crate::single::configuration::Budget;

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
    /// In the order of their grants. A lock has one at most.
    pub holds: Vec<Hold>,
    /// How many permits are in use, as the scripts count them.
    pub used: u8,
    /// The last fence that was granted, or that a hold which is over can have used.
    pub fence: Fence,
    /// Queued requests, in the order of their tickets.
    pub queue: Vec<(Ticket, RequestId)>,
    pub next_ticket: Ticket,
    /// The request that was overtaken last, and how many permits were granted over it while it was the first
    /// in the queue.
    pub overtaken: Option<(RequestId, u8)>,
    /// Whether each client is noted absent.
    pub absent: Vec<bool>,
    /// Whether a connection of each client has subscribed to its channel on this server, though its other end
    /// may be gone.
    pub subscribed: Vec<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    pub request: RequestId,
    /// The fence of its first turn. Those of the others follow it.
    pub fence: Fence,
    pub weight: u8,
    /// Granted by the call of another request, and not claimed yet.
    pub pushed: bool,
    /// Its deadline has passed, and no script has run since.
    pub over: bool,
    pub timer: Timer,
}

/// What tells the scripts that they must look at a hold. When its deadline has passed, its timer has run out
/// too, unless it is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Timer {
    #[default]
    Runs,
    /// It has run out before the deadline, which a renewal has moved.
    RanOutEarly,
    Lost,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    pub crashed: bool,
    pub subscribed: bool,
    /// The client has been subscribed before, so the next subscription is a reconnect.
    pub was_subscribed: bool,
    /// Calls on the live connection, in the order of sending.
    pub calls: Vec<Call>,
    /// Replies on the live connection, in the order of the calls.
    pub replies: Vec<Reply>,
    /// Messages on the live subscription.
    pub pushes: Vec<Message>,
    /// Calls on closed connections. They may still run at any time and in any order, and their replies are
    /// lost.
    pub stuck: Vec<Call>,
    /// Holds up to the one with this fence begin no further turn.
    pub wanted: Fence,
    /// History: a grant to this client ran out unclaimed, and it has asked for nothing since.
    pub is_silent: bool,
}

/// One acquire call of a user, or its continuation under a new id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request {
    pub stage: Stage,
    pub permits: Permits,
    /// Its place in the queue, as far as its client was told.
    pub ticket: Option<Ticket>,
    /// One of its calls was never answered and may still run.
    pub unanswered: bool,
    /// Its client may keep its hold between turns, since it will be told if others want it.
    pub retained: bool,
    /// History: its holds up to the one with this fence were taken away by force.
    pub forced: Fence,
    /// History: its hold is older than a retained one may get.
    pub outlived: bool,
    /// History: the first place of this request, or of the one that it continues, that its client was told.
    pub arrived: Option<Ticket>,
    /// History: how many permits were granted to requests that came later, with a larger capacity.
    pub overtaken: u8,
    /// History: it was unreachable at its turn, or heard of it too late, and has not come back to its place
    /// since.
    pub missed_turn: bool,
}

/// What a request asks for: to take `weight` permits while, with them, at most `capacity` are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permits {
    pub weight: u8,
    pub capacity: u8,
}

impl Permits {
    /// A lock is a semaphore of one permit.
    pub const LOCK: Permits = Permits {
        weight: 1,
        capacity: 1,
    };

    /// The holder of a lock, or a writer.
    pub fn are_all(self) -> bool {
        self.weight == self.capacity
    }
}

impl Default for Permits {
    fn default() -> Permits {
        Permits::LOCK
    }
}

/// The fences of a hold: that of its first turn, and that of the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Turn {
    pub first: Fence,
    pub fence: Fence,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Stage {
    #[default]
    Unused,
    Waiting,
    /// Its user believes that it holds the lock.
    Holding(Turn),
    /// Nobody uses the lock, but its client keeps the hold for the next caller of its process.
    Idle(Turn),
    Releasing,
    /// The request has ended, and its id is never used again.
    Over,
}

impl Stage {
    /// The fences of a hold that its client has, with a user or without.
    pub fn held(self) -> Option<Turn> {
        match self {
            Stage::Holding(turn) | Stage::Idle(turn) => Some(turn),
            _ => None,
        }
    }

    pub fn believes(self) -> bool {
        matches!(self, Stage::Holding(_))
    }

    pub fn is_held(self) -> bool {
        self.held().is_some()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    Acquire(Acquire),
    /// Ends the hold of this request whose first turn has this fence, and tells the fence of its last one.
    Release(RequestId, Turn),
    /// Ends whatever the server has of this request.
    Withdraw(RequestId),
    Renew(RequestId, Fence),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Acquire {
    pub request: RequestId,
    /// Tells the client, too, whether the server sees its subscription.
    pub is_poll: bool,
    pub ticket: Option<Ticket>,
    /// The request has been queued before, as far as its client knows.
    pub again: bool,
    /// It was sent while its client was subscribed, and the subscription has not been lost since.
    pub listens: bool,
    /// History: with this call the request comes back to its place after a missed turn.
    pub returns: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    pub request: RequestId,
    pub fence: Fence,
    pub pushed: bool,
    /// Its reader can tell that the grant is over, or nearly so.
    pub late: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// All grants of a hand-over to this client.
    Grants(Vec<Grant>),
    /// Others wait for the hold with this fence, or it was taken away by force.
    Wanted(Fence),
}

/// The reply to an acquire call. Other calls need no reply here: their effect is known once they have run on
/// a live connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reply {
    pub call: Acquire,
    pub answer: Answer,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Granted {
        grant: Grant,
        /// This call granted the lock, and found the request in the queue.
        was_queued: bool,
        /// Nobody is queued.
        alone: bool,
    },
    Queued {
        ticket: Ticket,
        /// The request was not in the queue before, or had a later place.
        enqueued: bool,
        /// The holder's grant, if the holder is another request of the same client.
        own_grant: Option<Grant>,
    },
}

/// What the properties must remember.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// The newest fence that a holder has believed in.
    pub newest_believed: Fence,
    /// The newest one in which a holder of all permits has believed.
    pub newest_of_all_permits: Fence,
    /// A holder believed in a fence that is not larger than that of an earlier one beside which it cannot
    /// hold.
    pub went_back: bool,
    /// A request in the queue was overtaken by a later one whose capacity is no larger, or while permits of
    /// its own capacity were free.
    pub overtaken: bool,
    /// A request in the queue was overtaken by more permits than a capacity.
    pub overtaken_often: bool,
    /// A script ended with enough permits free for the first reachable request in the queue.
    pub left_free: bool,
    /// A client that had left a grant unclaimed got another one before it asked again.
    pub granted_to_silent: bool,
    /// Permits were not given to a client that listens and is not silent.
    pub passed_over: bool,
    /// The last hold for which the message was lost that it is wanted.
    pub lost_wanted: Fence,
    /// A turn began on a hold that its client must have known to be wanted.
    pub late_turn: bool,
}

impl State {
    /// Those who believe that they hold, with their fences. Those whose holds were taken away by force are
    /// left out, since nothing makes them stop.
    pub fn believers(&self) -> impl Iterator<Item = (Fence, Permits)> + Clone {
        self.requests.iter().filter_map(|request| match request.stage {
            Stage::Holding(turn) if turn.first > request.forced => Some((turn.fence, request.permits)),
            _ => None,
        })
    }
}

impl Client {
    /// Nothing is under way between this client and the server.
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.replies.is_empty() && self.pushes.is_empty() && self.stuck.is_empty()
    }

    /// The grants that are under way to this client and not read yet.
    pub fn unread_grants(&mut self) -> impl Iterator<Item = &mut Grant> {
        let replied = self
            .replies
            .iter_mut()
            .filter_map(|reply| match &mut reply.answer {
                Answer::Granted { grant, .. } => Some(grant),
                Answer::Queued { own_grant, .. } => own_grant.as_mut(),
            });
        let pushed = self.pushes.iter_mut().filter_map(|message| match message {
            Message::Grants(grants) => Some(grants),
            Message::Wanted(_) => None,
        });
        replied.chain(pushed.flatten())
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
