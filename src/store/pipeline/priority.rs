//! Which of the waiting calls are sent first.

use crate::store::{
    Acquire, GetLabel, Inspect, Look, Release, Renew, SetLabel, SpinAcquire, SpinRelease, Withdraw,
};

/// Decides which waiting calls are sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// Keeps a hold, or concerns the connection. Such a call never waits for replies to other calls, so it is
    /// none that a program makes as often as it likes.
    Keep,
    /// Ends a hold or a wait, so that others can have the lock, or renews a hold because a caller asks for
    /// that.
    End,
    /// Asks for a lock with a ticket: the request has, or had, a place before all that have none yet.
    Return,
    /// Asks for a lock, or about locks.
    Ask,
}

/// Each call has a priority of its own, and none by default.
pub(crate) trait Prioritized {
    fn priority(&self) -> Priority;
}

impl Prioritized for Renew {
    fn priority(&self) -> Priority {
        match self.on_demand {
            true => Priority::End,
            false => Priority::Keep,
        }
    }
}

impl Prioritized for Look {
    fn priority(&self) -> Priority {
        Priority::Keep
    }
}

impl Prioritized for SetLabel {
    fn priority(&self) -> Priority {
        Priority::Keep
    }
}

impl Prioritized for Release {
    fn priority(&self) -> Priority {
        Priority::End
    }
}

impl Prioritized for Withdraw {
    fn priority(&self) -> Priority {
        Priority::End
    }
}

impl Prioritized for SpinRelease {
    fn priority(&self) -> Priority {
        Priority::End
    }
}

/// In a quorum, each request brings a ticket, and none goes before others because of it.
impl Prioritized for Acquire {
    fn priority(&self) -> Priority {
        match self.ticket.is_some() && self.floor.is_none() {
            true => Priority::Return,
            false => Priority::Ask,
        }
    }
}

impl Prioritized for SpinAcquire {
    fn priority(&self) -> Priority {
        Priority::Ask
    }
}

impl Prioritized for Inspect {
    fn priority(&self) -> Priority {
        Priority::Ask
    }
}

impl Prioritized for GetLabel {
    fn priority(&self) -> Priority {
        Priority::Ask
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::fence::Fence;
    use crate::store::Mode;
    use crate::store::ids::{ClientId, RequestId};
    use crate::store::keys::Keys;
    use crate::time::server_time::{ServerTime, Ticket};

    #[test]
    fn calls_of_requests_with_a_place_go_before_those_that_ask_for_one() {
        let time = Duration::from_secs(1);
        let new = Acquire {
            keys: Arc::new(Keys::new("fairlock", "a").unwrap()),
            request: RequestId::new(&ClientId::from_number(1), time, 1, None),
            mode: Mode::Register,
            lease: time,
            not_after: Arc::new(ServerTime::MAX),
            ticket: None,
            heartbeat: time,
            floor: None,
        };
        let returns = Acquire {
            ticket: Some(Ticket(1)),
            ..new.clone()
        };
        // It may not overtake the first call of its own request.
        let first_poll = Acquire {
            mode: Mode::Poll,
            ..new.clone()
        };
        let in_a_quorum = Acquire {
            floor: Fence::new(1),
            ..returns.clone()
        };
        let priorities = [new, first_poll, returns, in_a_quorum].map(|call| call.priority());
        let expected = [Priority::Ask, Priority::Ask, Priority::Return, Priority::Ask];
        assert_eq!(priorities, expected);
    }
}
