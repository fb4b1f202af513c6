//! The state: independent servers with one lock each, clients that want it on a majority of them, and what is
//! under way between them.
//!
//! Everything between a client and a server is kept with the server. Servers are alike, so a state is kept
//! sorted by server, and states that differ only by the numbers of servers are one.
//!
//! Time is an order of events, as in the model of one server. Fences are never renumbered: each grant raises
//! one, so an exploration that ends shows that no run grants for ever.

use crate::quorum::configuration::Budget;
use crate::quorum::list::List;

pub const SERVERS: usize = 3;
/// The votes of a majority.
pub const QUORUM: usize = SERVERS / 2 + 1;
/// The most clients of a configuration.
pub const CLIENTS: usize = 3;

pub type ServerId = usize;
pub type ClientId = u8;
/// The number of a request among those of its client on one server, from 1 on; 0 is no request.
pub type Attempt = u8;
pub type Fence = u8;
/// The place in every queue. It is the number of the client, whichever client reaches a server first, so that
/// every disagreement of tickets and arrival occurs.
pub type Ticket = u8;

/// The ticket of a holder that asks for missing votes.
pub const FIRST: Ticket = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub servers: [Server; SERVERS],
    pub clients: [Client; CLIENTS],
    /// What may still go wrong.
    pub budget: Budget,
    pub history: History,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Server {
    /// It is down, or may have forgotten votes that still count, and runs no call.
    pub mute: bool,
    pub hold: Option<Hold>,
    /// The last fence that was granted, or to which a hold was raised.
    pub fence: Fence,
    /// Queued requests, in the order of their tickets.
    pub queue: List<Place, 6>,
    /// What each client has to do with this server.
    pub voters: [Voter; CLIENTS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub ticket: Ticket,
    pub client: ClientId,
    pub attempt: Attempt,
}

/// The vote of a server, whose fence is the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hold {
    pub client: ClientId,
    pub attempt: Attempt,
}

/// A client's part for one server: its request there, its vote, and what is under way. Nothing is kept that
/// the client would ignore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Voter {
    /// The present request. Those before are over.
    pub attempt: Attempt,
    /// The fence of a vote that counts.
    pub vote: Option<Fence>,
    /// Requests that are over, and are withdrawn as soon as the present one is answered.
    pub leaving: Attempts,
    /// The last fence that these may have used, as their withdrawal tells it.
    pub leaving_used: Option<Fence>,
    /// Requests with a call that nobody will answer, and that may still run.
    pub unanswered: Attempts,
    /// Calls on the live connection, in the order of sending.
    pub calls: List<Call, 6>,
    /// Replies on the live connection, in the order of the calls.
    pub replies: List<Reply, 4>,
    pub pushes: List<Grant, 4>,
    /// The client is cut off from the server. Its calls are not written.
    pub is_cut_off: bool,
    /// The client has left the server, and asks for no vote.
    pub is_left: bool,
    /// Calls on closed connections. They may still run at any time and in any order, or never; their replies
    /// are lost.
    pub stuck: List<Call, 6>,
}

/// A set of requests of one client on one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempts(u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    Acquire {
        attempt: Attempt,
        ticket: Ticket,
    },
    /// Renews a vote, raises its fence to the floor, and asks whether an earlier ticket is queued.
    Renew {
        attempt: Attempt,
        floor: Fence,
    },
    /// Ends whatever the server has of these requests. The next grant has the floor as its least fence.
    Withdraw {
        attempts: Attempts,
        floor: Fence,
        /// The last fence that was used. If it is not told, the vote may have used all that it reserved.
        used: Option<Fence>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reply {
    Queued(Attempt),
    Granted(Grant),
    /// The fence that the vote has now, `None` if the server knows of no such vote; and whether the first in
    /// the queue has an earlier ticket.
    Renewed {
        attempt: Attempt,
        fence: Option<Fence>,
        earlier: bool,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Grant {
    pub attempt: Attempt,
    pub fence: Fence,
    /// Its reader can tell that it is over.
    pub late: bool,
}

/// What a client has to do with the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Client {
    #[default]
    Absent,
    /// Its ballot is not decided.
    Waiting,
    /// It believes that it holds the lock.
    Holding {
        /// The fence of its first turn. Those of the others follow it.
        first: Fence,
        /// The fence of the present turn.
        fence: Fence,
        claimed: bool,
    },
    /// It has released, given up or lost the lock.
    Done,
    Dead,
}

/// What the properties must remember.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// The newest fence that a holder has believed in.
    pub newest_believed: Fence,
    /// A holder believed in a fence that was not larger than that.
    pub went_back: bool,
    /// A client was overtaken by one that began later.
    pub overtaken: bool,
    /// For each client, the waiting clients with an earlier ticket that were queued on a majority when it
    /// began, one bit for each.
    pub came_before: [u8; CLIENTS],
}

impl State {
    pub fn voter(&self, server: ServerId, client: ClientId) -> &Voter {
        &self.servers[server].voters[usize::from(client)]
    }

    pub fn voter_mut(&mut self, server: ServerId, client: ClientId) -> &mut Voter {
        &mut self.servers[server].voters[usize::from(client)]
    }

    pub fn client(&self, client: ClientId) -> Client {
        self.clients[usize::from(client)]
    }

    /// Changes what the client has to do with the lock.
    pub fn enter(&mut self, client: ClientId, stage: Client) {
        self.clients[usize::from(client)] = stage;
        self.history.came_before[usize::from(client)] = 0;
        for came_before in &mut self.history.came_before {
            *came_before &= !(1 << client);
        }
    }

    /// The votes of a client that count.
    pub fn votes(&self, client: ClientId) -> impl Iterator<Item = Fence> {
        self.servers
            .iter()
            .filter_map(move |server| server.voters[usize::from(client)].vote)
    }

    /// Whether the client can get the vote of this server.
    pub fn reaches(&self, server: ServerId, client: ClientId) -> bool {
        !self.servers[server].mute && !self.voter(server, client).is_cut_off
    }

    /// Whether the client can get votes of a majority.
    pub fn reaches_majority(&self, client: ClientId) -> bool {
        (0..SERVERS)
            .filter(|server| self.reaches(*server, client))
            .count()
            >= QUORUM
    }
}

impl History {
    /// A holder believes in this fence from now on.
    pub fn note_fence(&mut self, fence: Fence) {
        self.went_back |= fence <= self.newest_believed;
        self.newest_believed = self.newest_believed.max(fence);
    }
}

impl Client {
    /// It wants votes, and its voters ask for them.
    pub fn asks(self) -> bool {
        matches!(self, Client::Waiting | Client::Holding { .. })
    }

    pub fn believes(self) -> bool {
        matches!(self, Client::Holding { .. })
    }
}

impl Server {
    pub fn is_held_by(&self, client: ClientId, attempt: Attempt) -> bool {
        self.hold == Some(Hold { client, attempt })
    }

    pub fn knows_request(&self, client: ClientId, attempt: Attempt) -> bool {
        let queued = self
            .queue
            .iter()
            .any(|place| (place.client, place.attempt) == (client, attempt));
        queued || self.is_held_by(client, attempt)
    }

    /// The client has the vote or is queued.
    pub fn knows(&self, client: ClientId) -> bool {
        self.hold.is_some_and(|hold| hold.client == client)
            || self.queue.iter().any(|place| place.client == client)
    }
}

impl Voter {
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty() && self.replies.is_empty() && self.pushes.is_empty() && self.stuck.is_empty()
    }

    /// The client has nothing to do with this server any more, and ignores what it says.
    pub fn forget(&mut self) {
        *self = Voter {
            unanswered: self.unanswered,
            calls: self.calls,
            stuck: self.stuck,
            is_cut_off: self.is_cut_off,
            ..Voter::default()
        };
    }

    /// The client will do something when it reads this reply. It ignores what concerns a request that is
    /// over.
    pub fn heeds(&self, reply: &Reply) -> bool {
        match *reply {
            Reply::Queued(attempt) => attempt == self.attempt && !self.leaving.is_empty(),
            Reply::Granted(grant) => grant.attempt == self.attempt,
            Reply::Renewed { attempt, .. } => attempt == self.attempt,
        }
    }

    pub fn is_renewing(&self) -> bool {
        let called = self.calls.iter().any(|call| matches!(call, Call::Renew { .. }));
        called
            || self
                .replies
                .iter()
                .any(|reply| matches!(reply, Reply::Renewed { .. }))
    }
}

impl Attempts {
    pub const NONE: Attempts = Attempts(0);

    pub fn of(attempt: Attempt) -> Attempts {
        assert!(u32::from(attempt) < u16::BITS, "too many requests");
        Attempts(1 << attempt)
    }

    pub fn has(self, attempt: Attempt) -> bool {
        self.0 & 1 << attempt != 0
    }

    pub fn and(self, other: Attempts) -> Attempts {
        Attempts(self.0 | other.0)
    }

    pub fn without(self, other: Attempts) -> Attempts {
        Attempts(self.0 & !other.0)
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Call {
    pub fn requests(self) -> Attempts {
        match self {
            Call::Acquire { attempt, .. } | Call::Renew { attempt, .. } => Attempts::of(attempt),
            Call::Withdraw { attempts, .. } => attempts,
        }
    }

    pub fn acquires(self) -> bool {
        matches!(self, Call::Acquire { .. })
    }
}

impl Default for Call {
    fn default() -> Call {
        Call::Withdraw {
            attempts: Attempts::NONE,
            floor: 0,
            used: None,
        }
    }
}

impl Default for Reply {
    fn default() -> Reply {
        Reply::Queued(0)
    }
}
