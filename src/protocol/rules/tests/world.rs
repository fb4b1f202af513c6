//! One name on the rules, with a clock of its own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::keys::Keys;
use crate::protocol::rules::{BOUND, ByRules, Rules};
use crate::protocol::rules::{Channels, Now, Run};
use crate::protocol::{
    Acquire, Acquired, ConnectionId, Contended, Grant, Inspect, Inspected, Mode, Push, Release,
    ReleaseOutcome, ReleaseWhat, Released, Renew, Renewed, Withdraw, Withdrawn,
};
use crate::time::server_time::ServerTime;
use crate::types::fence::Fence;
use crate::types::owner::Owner;
use crate::types::status::Kind;

pub(super) const LEASE_MS: u64 = 30_000;
pub(super) const CLAIM_MS: u64 = 5_000;

/// One lock with a clock of its own. All clients can be reached.
pub(super) struct World {
    pub(super) rules: Rules,
    pub(super) wires: Wires,
    pub(super) keys: Arc<Keys>,
    pub(super) now_us: u64,
}

#[derive(Default)]
pub(super) struct Wires {
    /// Channels whose subscribers are not counted. The subscribers still hear messages, as at a replica.
    pub(super) uncounted: BTreeSet<String>,
    /// Channels on which the caller may not publish.
    pub(super) denied: BTreeSet<String>,
    pub(super) pushes: Vec<Push>,
    /// The channels of these messages.
    pub(super) told: Vec<String>,
}

impl Channels for Wires {
    fn subscribers(&self, channel: &str) -> usize {
        usize::from(!self.uncounted.contains(channel))
    }

    fn publish(&mut self, channel: &str, message: &str) -> bool {
        if self.denied.contains(channel) {
            return false;
        }
        self.pushes.push(Push::parse(message).unwrap());
        self.told.push(channel.to_owned());
        true
    }
}

/// The first request of client `n`.
pub(super) fn request(n: u128) -> RequestId {
    nth(n, 1)
}

pub(super) fn nth(client: u128, n: u64) -> RequestId {
    RequestId::new(
        &ClientId::from_number(client),
        Duration::from_millis(CLAIM_MS),
        n,
        None,
    )
}

pub(super) fn owned(client: u128, n: u64) -> RequestId {
    let owner = Owner::named("one of several");
    RequestId::new(
        &ClientId::from_number(client),
        Duration::from_millis(CLAIM_MS),
        n,
        Some(&owner),
    )
}

impl World {
    pub(super) fn new() -> World {
        World::of_kind(Kind::Lock)
    }

    pub(super) fn of_kind(kind: Kind) -> World {
        World {
            rules: Rules::new(BOUND),
            wires: Wires::default(),
            keys: Arc::new(Keys::of_kind(kind, "fairlock", "orders:42").unwrap()),
            now_us: 1_700_000_000_000_000,
        }
    }

    pub(super) fn now(&self) -> Now {
        Now {
            us: self.now_us,
            ms: self.now_us / 1000,
        }
    }

    pub(super) fn time(&self) -> ServerTime {
        ServerTime::from_ms(self.now().ms)
    }

    pub(super) fn pass(&mut self, ms: u64) {
        self.now_us += ms * 1000;
    }

    pub(super) fn call(&self, request: &RequestId, mode: Mode) -> Acquire {
        Acquire {
            keys: self.keys.clone(),
            request: request.clone(),
            mode,
            lease: Duration::from_millis(LEASE_MS),
            not_after: Arc::new(ServerTime::MAX),
            ticket: None,
            floor: None,
        }
    }

    pub(super) fn run<O: ByRules>(&mut self, call: &O) -> O::Reply {
        let not_after = call
            .stamp()
            .and_then(|stamp| stamp.written(ConnectionId::default()));
        let run = Run {
            now: self.now(),
            not_after: not_after.unwrap_or(ServerTime::MAX),
            channels: &mut self.wires,
        };
        call.by_rules(&mut self.rules, run)
    }

    pub(super) fn ask(&mut self, call: &Acquire) -> Acquired {
        // No two calls of a test have the same time, as on a server.
        self.now_us += 1;
        self.run(call)
    }

    pub(super) fn acquire(&mut self, request: &RequestId, mode: Mode) -> Acquired {
        self.run(&self.call(request, mode))
    }

    pub(super) fn grant(&mut self, request: &RequestId) -> Grant {
        match self.acquire(request, Mode::Ask) {
            Acquired::Granted { grant, .. } => grant,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn queue(&mut self, request: &RequestId) -> Contended {
        self.contended(request, Mode::Ask)
    }

    pub(super) fn contended(&mut self, request: &RequestId, mode: Mode) -> Contended {
        match self.acquire(request, mode) {
            Acquired::Contended(contended) => contended,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn release(&mut self, request: &RequestId, what: ReleaseWhat) -> ReleaseOutcome {
        let call = Release {
            keys: self.keys.clone(),
            request: request.clone(),
            what,
            floor: None,
        };
        self.now_us += 1;
        let Released { outcome, .. } = self.run(&call);
        outcome
    }

    pub(super) fn withdraw(&mut self, requests: &[RequestId]) -> Withdrawn {
        let call = Withdraw {
            keys: self.keys.clone(),
            requests: requests.to_vec(),
            floor: None,
        };
        self.now_us += 1;
        self.run(&call)
    }

    pub(super) fn give(&mut self, grant: &Grant) -> ReleaseOutcome {
        self.release(&grant.request, ReleaseWhat::Grant(grant.fence))
    }

    /// Releases a hold that has used so many fences beyond its first one.
    pub(super) fn end_turns(&mut self, grant: &Grant, more: u64) -> ReleaseOutcome {
        let last = Fence::new(grant.fence.get() + more).unwrap();
        let first = grant.fence;
        self.release(&grant.request, ReleaseWhat::Turns { first, last })
    }

    pub(super) fn renew(&mut self, grant: &Grant, lease_ms: u64, cap: ServerTime) -> Renewed {
        let call = Renew {
            keys: self.keys.clone(),
            request: grant.request.clone(),
            fence: grant.fence,
            lease: Duration::from_millis(lease_ms),
            cap,
            on_demand: false,
        };
        self.run(&call)
    }

    pub(super) fn inspect(&mut self) -> Inspected {
        let call = Inspect {
            keys: self.keys.clone(),
            request: request(99),
        };
        self.run(&call)
    }

    /// The last pushed grant.
    pub(super) fn pushed(&self) -> Grant {
        match self.wires.pushes.last() {
            Some(Push::Granted(grants)) => grants[0].clone(),
            other => panic!("{other:?} instead of a grant"),
        }
    }

    pub(super) fn channel_of(&self, client: u128) -> String {
        self.keys.channel_of(&ClientId::from_number(client)).to_string()
    }

    pub(super) fn in_ms(&self, ms: u64) -> ServerTime {
        self.time().after(Duration::from_millis(ms))
    }
}
