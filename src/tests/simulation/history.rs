//! What happened in one simulation, in its order: what tasks asked for and got, what the server executed,
//! what went wrong.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::timing::Timing;
use crate::store::ids::RequestId;
use crate::store::{Acquire, Acquired, Grant, Release, Released, Renew, Renewed, Withdraw};
use crate::sync::locked;
use crate::{Error, Fence, LockGuard, Owner};

/// One call of a task, from asking to its end.
pub(super) type Op = usize;

/// What can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// To a single message.
    SlowCall,
    SlowReply,
    LostReply,
    ExecutedTwice,
    LostPush,
    DoublePush,
    SlowPush,
    /// The thread of a task stands still for a moment, before a call is sent or with the answer in its hands:
    /// so others of the client are faster.
    SlowTask,
    /// A connection breaks, and a new one takes its place after a while.
    CommandsCut,
    /// The same, but the client is not told: what is sent is lost until a call is not answered in time.
    CommandsSilent,
    MessagesCut,
    /// The same, but the server goes on believing in the subscriptions of the old one for a while.
    MessagesHalfOpen,
    /// The server loses one subscription. The client is not told.
    SubscriptionLost,
    /// The subscriber connection of a client leads to a replica: the server that is called does not count its
    /// subscriptions.
    AtReplica,
    /// The process stands still for a while.
    Stopped,
    /// The process dies.
    Killed,
    /// The server refuses to execute anything for a while.
    Refusing,
    /// The server does nothing for a while.
    Stalled,
    /// The server forgets everything.
    Flushed,
    /// The server forgets the clients' records.
    RecordsForgotten,
    /// The server forgets the scripts.
    ScriptsForgotten,
    /// The server's clock is set back.
    ClockSetBack,
    /// A client is closed.
    Closed,
}

impl Fault {
    pub(super) const OF_MESSAGES: [Fault; 8] = [
        Fault::SlowCall,
        Fault::SlowReply,
        Fault::LostReply,
        Fault::ExecutedTwice,
        Fault::LostPush,
        Fault::DoublePush,
        Fault::SlowPush,
        Fault::SlowTask,
    ];

    /// Whether it strikes the server, and with it all clients.
    pub(super) fn strikes_all(self) -> bool {
        use Fault::{ClockSetBack, Flushed, RecordsForgotten, Refusing, ScriptsForgotten, Stalled};
        matches!(
            self,
            Refusing | Stalled | Flushed | RecordsForgotten | ScriptsForgotten | ClockSetBack
        )
    }

    pub(super) const OF_THE_WORLD: [Fault; 15] = [
        Fault::CommandsCut,
        Fault::CommandsSilent,
        Fault::MessagesCut,
        Fault::MessagesHalfOpen,
        Fault::SubscriptionLost,
        Fault::AtReplica,
        Fault::Stopped,
        Fault::Killed,
        Fault::Refusing,
        Fault::Stalled,
        Fault::Flushed,
        Fault::RecordsForgotten,
        Fault::ScriptsForgotten,
        Fault::ClockSetBack,
        Fault::Closed,
    ];
}

/// How a task asks for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Acquire,
    Within(Duration),
    /// Dropped after so long.
    Cancelled(Duration),
    Try,
}

/// How a task gives a lock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Release,
    /// A release that is dropped after so long.
    ReleaseCancelled(Duration),
    Drop,
    Forget,
}

#[derive(Clone, Debug)]
#[allow(dead_code, reason = "some fields are only printed, in transcripts")]
pub(super) enum Event {
    Called {
        op: Op,
        client: usize,
        lock: usize,
        way: Way,
    },
    Acquired(Belief),
    Busy {
        op: Op,
    },
    Cancelled {
        op: Op,
    },
    Failed {
        op: Op,
        error: Error,
    },
    /// The task gives up its guard. `believed`: that was still good.
    Ended {
        op: Op,
        end: End,
        believed: bool,
    },
    Released {
        op: Op,
        result: Result<(), Error>,
    },
    Forced {
        op: Op,
        fence: Fence,
        taken: bool,
    },
    /// The server did something for a client.
    Executed {
        client: usize,
        effect: Effect,
    },
    /// The server published a grant. The message may never arrive.
    Pushed {
        key: String,
        grant: Grant,
    },
    /// What this fence stood for was taken away by force or forgotten: nothing is promised of its holders.
    Revoked {
        key: String,
        fence: Fence,
    },
    /// Something goes wrong, which may delay this client, or all of them, until then.
    Fault {
        fault: Fault,
        client: Option<usize>,
        until: Duration,
    },
    /// The holds of a lock on the server from now on, with their deadlines.
    Holds {
        key: String,
        holds: BTreeMap<RequestId, Duration>,
    },
    /// A client's process is gone for good, and its calls with it.
    Died {
        client: usize,
    },
    /// From now on nothing goes wrong any more, and what went wrong before is over.
    Calm,
}

/// A task was given a guard.
#[derive(Clone, Debug)]
pub(super) struct Belief {
    pub(super) op: Op,
    pub(super) lock: usize,
    pub(super) owner: Owner,
    pub(super) fence: Fence,
    /// It was lost before the task, which had been stopped, could look at it. So no task believes in it.
    pub(super) late: bool,
    /// The server keeps the lock under that fence.
    pub(super) real: bool,
    /// The others that believe at this moment that they hold the lock.
    pub(super) beside: Vec<(Op, Owner, Fence)>,
}

/// A call as the server executed it, and its reply.
#[derive(Clone)]
pub(super) enum Effect {
    Acquire(Acquire, Acquired),
    Release(Release, Released),
    Withdraw(Withdraw),
    Renew(Renew, Renewed),
    Other(&'static str),
}

/// Without what is the same for all calls.
impl fmt::Debug for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Effect::Acquire(call, reply) => {
                let Acquire {
                    request,
                    mode,
                    ticket,
                    ..
                } = call;
                write!(
                    f,
                    "acquire {request} {mode:?} {ticket:?} in {}: {reply:?}",
                    call.keys.name
                )
            }
            Effect::Release(call, reply) => {
                let Release {
                    keys, request, what, ..
                } = call;
                write!(
                    f,
                    "release {request} {what:?} in {}: {:?}",
                    keys.name, reply.outcome
                )
            }
            Effect::Withdraw(call) => {
                let Withdraw { keys, requests, .. } = call;
                write!(f, "withdraw {requests:?} in {}", keys.name)
            }
            Effect::Renew(call, reply) => {
                let Renew {
                    keys, request, fence, ..
                } = call;
                write!(f, "renew {request} {fence} in {}: {reply:?}", keys.name)
            }
            Effect::Other(call) => f.write_str(call),
        }
    }
}

pub(super) struct History {
    start: Instant,
    timing: Timing,
    events: Mutex<Vec<(Duration, Event)>>,
    ops: Mutex<Op>,
    believers: Mutex<Vec<Believer>>,
}

struct Believer {
    op: Op,
    lock: usize,
    guard: Weak<LockGuard>,
}

impl History {
    pub(super) fn new(timing: Timing) -> Arc<History> {
        Arc::new(History {
            start: Instant::now(),
            timing,
            events: Mutex::default(),
            ops: Mutex::default(),
            believers: Mutex::default(),
        })
    }

    pub(super) fn record(&self, event: Event) {
        locked(&self.events).push((self.start.elapsed(), event));
    }

    /// Something goes wrong with this client, or with all of them, and is over after so long.
    pub(super) fn fault(&self, fault: Fault, client: Option<usize>, lasts: Duration) {
        let until = self.start.elapsed() + lasts + self.timing.recovery(fault);
        self.record(Event::Fault { fault, client, until });
    }

    /// The holds of a lock have changed; given is how long each lasts.
    pub(super) fn holds(&self, key: &str, left: impl Iterator<Item = (RequestId, Duration)>) {
        let now = self.start.elapsed();
        let holds = left.map(|(request, left)| (request, now + left)).collect();
        let key = key.to_owned();
        self.record(Event::Holds { key, holds });
    }

    pub(super) fn asked(&self, client: usize, lock: usize, way: Way) -> Op {
        let op = {
            let mut ops = locked(&self.ops);
            *ops += 1;
            *ops
        };
        self.record(Event::Called {
            op,
            client,
            lock,
            way,
        });
        op
    }

    /// A task was given a guard, which it believes in until it lets go of it or the guard says that it is
    /// lost.
    pub(super) fn acquired(&self, op: Op, lock: usize, real: bool, guard: LockGuard) -> Arc<LockGuard> {
        let guard = Arc::new(guard);
        let mut believers = locked(&self.believers);
        believers.retain(|believer| believer.guard.upgrade().is_some_and(|guard| !guard.is_lost()));
        let beside = believers
            .iter()
            .filter(|believer| believer.lock == lock)
            .filter_map(|believer| {
                let guard = believer.guard.upgrade()?;
                Some((believer.op, guard.owner().clone(), guard.fence()))
            })
            .collect();
        believers.push(Believer {
            op,
            lock,
            guard: Arc::downgrade(&guard),
        });
        drop(believers);
        self.record(Event::Acquired(Belief {
            op,
            lock,
            owner: guard.owner().clone(),
            fence: guard.fence(),
            late: guard.is_lost(),
            real,
            beside,
        }));
        guard
    }

    pub(super) fn events(&self) -> Vec<(Duration, Event)> {
        std::mem::take(&mut *locked(&self.events))
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").finish_non_exhaustive()
    }
}
