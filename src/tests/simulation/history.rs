//! The events of one simulation, in order: what the tasks asked for and got, what the server executed, and
//! what went wrong.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::timing::Timing;
use crate::protocol::ids::RequestId;
use crate::protocol::rules::permits::PermitsHold;
use crate::protocol::{Acquire, Acquired, Grant, Release, Released, Renew, Renewed, Withdraw};
use crate::servers::memory::Written;
use crate::sync::locked;
use crate::types::permits::Permits;
use crate::{Error, Fence, LockGuard, Owner};

/// The number of one call of a task.
pub(super) type Op = usize;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// This fault and all up to `SlowTask` concern single messages.
    SlowCall,
    SlowReply,
    LostReply,
    ExecutedTwice,
    LostPush,
    DoublePush,
    SlowPush,
    /// The thread of a task stalls for a moment, before it sends a call or after it gets the answer. Other
    /// tasks of the client run ahead of it.
    SlowTask,
    /// A connection breaks, and a new one replaces it later.
    CommandsCut,
    /// As before, but the client does not notice. All messages are lost until a call goes unanswered for too
    /// long.
    CommandsSilent,
    MessagesCut,
    /// As before, but the server keeps the subscriptions of the old connection for a while.
    MessagesHalfOpen,
    /// The server loses one subscription, and the client does not notice.
    SubscriptionLost,
    /// A client's subscriber connection leads to a replica, so the primary does not count its subscriptions.
    AtReplica,
    /// The process is stopped for a while.
    Stopped,
    /// The process dies.
    Killed,
    /// The server refuses to execute anything for a while.
    Refusing,
    /// The server executes nothing for a while.
    Stalled,
    /// The server loses all data.
    Flushed,
    /// All clients that wait are noted absent.
    NotedAbsent,
    /// The server loses the scripts.
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

    /// Whether the fault affects the server, and so all clients.
    pub(super) fn strikes_all(self) -> bool {
        use Fault::{ClockSetBack, Flushed, NotedAbsent, Refusing, ScriptsForgotten, Stalled};
        matches!(
            self,
            Refusing | Stalled | Flushed | NotedAbsent | ScriptsForgotten | ClockSetBack
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
        Fault::NotedAbsent,
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
    /// The task drops its call after this time.
    Cancelled(Duration),
    Try,
}

/// How a task gives a lock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Release,
    /// The task drops the release after this time.
    ReleaseCancelled(Duration),
    Drop,
}

#[derive(Clone, Debug)]
#[allow(dead_code, reason = "some fields are only printed, in transcripts")]
pub(super) enum Event {
    Called {
        op: Op,
        client: usize,
        lock: usize,
        /// Those that it asks for, and of how many.
        permits: Permits,
        way: Way,
        /// The call waits in the local queue of its client.
        queues_locally: bool,
    },
    Acquired(Belief),
    /// The task makes the guard of its writer a reader's. From here on it counts as one.
    Downgrades {
        op: Op,
    },
    /// … and how that ended. `left` is how many permits the hold has on the server, if it is there.
    Downgraded {
        op: Op,
        result: Result<(), Error>,
        left: Option<u32>,
    },
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
    /// The task gave up its guard. `believed` says whether the guard was still valid.
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
    /// The server executed a call of a client.
    Executed {
        client: usize,
        effect: Effect,
    },
    /// The server executed a poll of this client, whose subscription it had.
    Listens {
        client: usize,
        key: String,
    },
    /// The server published a grant. The message may be lost.
    Pushed {
        key: String,
        grant: Grant,
    },
    /// The hold with this fence was released by force or lost by the server, so its holder is promised
    /// nothing more.
    Revoked {
        key: String,
        fence: Fence,
    },
    /// A fault, which may delay this client, or all clients, until the given time.
    Fault {
        fault: Fault,
        client: Option<usize>,
        until: Duration,
    },
    /// The present holds of a lock on the server, with their deadlines, and the first request in its queue.
    Holds {
        key: String,
        holds: BTreeMap<RequestId, (Duration, PermitsHold)>,
        head: Option<RequestId>,
    },
    /// A client's process was killed, and its calls with it.
    Died {
        client: usize,
    },
    /// All faults are over, and no more follow.
    Calm,
}

/// A task was given a guard.
#[derive(Clone, Debug)]
pub(super) struct Belief {
    pub(super) op: Op,
    pub(super) lock: usize,
    pub(super) owner: Owner,
    pub(super) fence: Fence,
    /// The guard was lost before the task could look at it, because the task was stopped. So no task believes
    /// in it.
    pub(super) late: bool,
    /// Whether the server has the lock held under that fence.
    pub(super) real: bool,
    /// The other tasks that believe at this moment that they hold the lock.
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

/// Leaves out the arguments that all calls have in common.
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

    /// Records a fault of this client, or of all clients, that lasts so long.
    pub(super) fn fault(&self, fault: Fault, client: Option<usize>, lasts: Duration) {
        let until = self.start.elapsed() + lasts + self.timing.recovery(fault);
        self.record(Event::Fault { fault, client, until });
    }

    /// Records the holds of a lock after a change. `server_now` is the time of the server's clock, in ms.
    pub(super) fn holds(&self, key: &str, written: &Written, server_now: u64) {
        let now = self.start.elapsed();
        let holds = written.holds.iter().map(|(request, hold)| {
            let left = Duration::from_millis(hold.deadline.saturating_sub(server_now));
            (request.clone(), (now + left, *hold))
        });
        self.record(Event::Holds {
            key: key.to_owned(),
            holds: holds.collect(),
            head: written.head.clone(),
        });
    }

    pub(super) fn asked(
        &self,
        client: usize,
        lock: usize,
        permits: Permits,
        way: Way,
        queues_locally: bool,
    ) -> Op {
        let op = {
            let mut ops = locked(&self.ops);
            *ops += 1;
            *ops
        };
        self.record(Event::Called {
            op,
            client,
            lock,
            permits,
            way,
            queues_locally,
        });
        op
    }

    /// Records that a task was given a guard. The task believes in it until it gives the guard up or the
    /// guard reports its loss.
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
