//! The steps of a run: calls of three clients on two locks, and events around them.

use proptest::prelude::*;

use crate::protocol::Mode;

pub(super) const LOCKS: usize = 2;
pub(super) const CLIENTS: usize = 3;
pub(super) const REQUESTS: usize = 15;
/// A spin lock expires by the server's own clock, not by the test's. The leases are so long that none
/// expires.
pub(super) const SPIN_LEASES_MS: [u64; 2] = [86_400_000, 172_800_000];

#[derive(Clone, Debug)]
pub(super) enum Step {
    Call {
        lock: usize,
        call: Call,
        trouble: Option<Trouble>,
    },
    Subscribe {
        lock: usize,
        client: usize,
    },
    Unsubscribe {
        lock: usize,
        client: usize,
    },
    /// Time passes on the server, or its clock is set back.
    LocalTime {
        us: i64,
    },
    /// An operator deletes a key.
    Delete {
        lock: usize,
        key: Key,
    },
    /// An operator deletes all data.
    DeleteAll,
    /// A client of a newer version writes the lock in another format, or restores the present format.
    Format {
        lock: usize,
        newer: bool,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Call {
    Acquire {
        request: usize,
        mode: Mode,
        lease_ms: u64,
        not_after_ms: i64,
        ticket_us: Option<i64>,
        floor: Option<Floor>,
    },
    Release {
        request: PickRequest,
        what: What,
        floor: Option<Floor>,
    },
    Withdraw {
        requests: Vec<PickRequest>,
        floor: Option<Floor>,
    },
    Renew {
        request: PickRequest,
        fence: PickFence,
        lease_ms: u64,
        cap_ms: i64,
    },
    Look {
        request: PickRequest,
        fence: PickFence,
        lease_ms: u64,
        cap_ms: i64,
        floor: Floor,
        ticket_us: i64,
    },
    Inspect,
    SpinAcquire {
        owner: usize,
        request: usize,
        lease_ms: u64,
    },
    SpinRelease {
        owner: usize,
    },
}

/// A condition under which a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The caller may publish to the first client only.
    NoPublish,
    /// The server is out of memory.
    Full,
    /// The server refuses writes because it has too few replicas.
    ReadOnly,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Grant(PickFence),
    /// The hold has used this fence and so many more.
    Turns(PickFence, u64),
    /// The lock stays taken for so long at most, and until so long after now (ms).
    Keep(PickFence, u64, i64),
    Force(PickFence),
}

/// Picks a request: one that has a hold, if there is any, or a given one.
#[derive(Clone, Copy, Debug)]
pub(super) enum PickRequest {
    Holder(usize),
    Any(usize),
}

/// Picks a fence: the lock's present one or a former one.
#[derive(Clone, Copy, Debug)]
pub(super) enum PickFence {
    Present,
    Former,
}

/// A floor, in µs from the server's time or from the lock's present fence.
#[derive(Clone, Copy, Debug)]
pub(super) enum Floor {
    Now(i64),
    Fence(i64),
}

/// The limit of how far a floor can be ahead of the server's time, in µs.
pub(super) const MAX_AHEAD_US: i64 = 86_400_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) enum Key {
    Lock,
    Queue,
    Spin,
}

/// A release tells of up to so many turns.
const TURNS: u64 = 4;

/// The requests of owners that all clients share. Each other request is its own owner.
pub(super) fn owned() -> Vec<usize> {
    (0..REQUESTS).filter(|n| n % 5 >= 3).collect()
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..120)
}

fn step() -> impl Strategy<Value = Step> {
    let lock = || 0..LOCKS;
    let client = || 0..CLIENTS;
    let troubles = vec![Trouble::NoPublish, Trouble::Full, Trouble::ReadOnly];
    let trouble = prop::option::weighted(0.1, prop::sample::select(troubles));
    let tick = prop_oneof![
        8 => 0..2_000_i64, 6 => 0..1_500_000_i64, 4 => 0..12_000_000_i64, 2 => -6_000_000..0_i64,
        1 => -100_000_000..0_i64
    ];
    let key = prop::sample::select(vec![Key::Lock, Key::Queue, Key::Spin]);
    // The present format is restored soon, because nothing happens in the other one.
    let newer = prop::bool::weighted(0.3);
    prop_oneof![
        260 => (lock(), call(), trouble).prop_map(|(lock, call, trouble)| Step::Call { lock, call, trouble }),
        50 => (lock(), client()).prop_map(|(lock, client)| Step::Subscribe { lock, client }),
        10 => (lock(), client()).prop_map(|(lock, client)| Step::Unsubscribe { lock, client }),
        40 => tick.prop_map(|us| Step::LocalTime { us }),
        4 => (lock(), key).prop_map(|(lock, key)| Step::Delete { lock, key }),
        1 => Just(Step::DeleteAll),
        6 => (lock(), newer).prop_map(|(lock, newer)| Step::Format { lock, newer }),
    ]
}

fn floor() -> impl Strategy<Value = Floor> {
    // After a floor far ahead, each further fence of the lock is only one larger. So such floors are rare.
    prop_oneof![
        20 => (-5_000_000..5_000_000_i64).prop_map(Floor::Now), 10 => (-2..3_i64).prop_map(Floor::Fence),
        1 => (MAX_AHEAD_US - 1..MAX_AHEAD_US + 2).prop_map(Floor::Now)
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let request = || prop_oneof![2 => 0..REQUESTS, 1 => prop::sample::select(owned())];
    let picked = || {
        prop_oneof![
            2 => (0..REQUESTS).prop_map(PickRequest::Holder), 1 => (0..REQUESTS).prop_map(PickRequest::Any)
        ]
    };
    let owner = || 0..CLIENTS;
    let lease = || prop::sample::select(vec![100, 1_000, 5_000, 30_000, 90_000]);
    let fence = || prop_oneof![4 => Just(PickFence::Present), 1 => Just(PickFence::Former)];
    let mode = prop_oneof![
        1 => Just(Mode::Try), 6 => Just(Mode::Ask), 3 => Just(Mode::Poll)
    ];
    let not_after = prop_oneof![9 => Just(2_000), 1 => -100..100_i64];
    let ticket = prop_oneof![3 => Just(None), 1 => (-5_000_000..1_000_000_i64).prop_map(Some)];
    let cap = || prop_oneof![3 => Just(86_400_000), 1 => -1_000..10_000_i64];
    let turns = (fence(), 0..TURNS).prop_map(|(fence, more)| What::Turns(fence, more));
    let keep = (fence(), lease(), cap()).prop_map(|(fence, most, until)| What::Keep(fence, most, until));
    let what = prop_oneof![
        4 => fence().prop_map(What::Grant), 2 => turns, 2 => keep, 1 => fence().prop_map(What::Force)
    ];
    let in_quorum = || prop::option::weighted(0.3, floor());
    let spin_lease = prop::sample::select(SPIN_LEASES_MS.to_vec());
    prop_oneof![
        12 => (request(), mode, lease(), not_after, ticket, in_quorum()).prop_map(
            |(request, mode, lease_ms, not_after_ms, ticket_us, floor)| Call::Acquire {
                request, mode, lease_ms, not_after_ms, ticket_us, floor
            }
        ),
        4 => (picked(), what, in_quorum())
            .prop_map(|(request, what, floor)| Call::Release { request, what, floor }),
        2 => (prop::collection::vec(picked(), 1..4), in_quorum())
            .prop_map(|(requests, floor)| Call::Withdraw { requests, floor }),
        4 => (picked(), fence(), lease(), cap())
            .prop_map(|(request, fence, lease_ms, cap_ms)| Call::Renew { request, fence, lease_ms, cap_ms }),
        4 => (picked(), fence(), lease(), cap(), floor(), -5_000_000..1_000_000_i64).prop_map(
            |(request, fence, lease_ms, cap_ms, floor, ticket_us)| Call::Look {
                request, fence, lease_ms, cap_ms, floor, ticket_us
            }
        ),
        1 => Just(Call::Inspect),
        1 => (owner(), 0..REQUESTS, spin_lease)
            .prop_map(|(owner, request, lease_ms)| Call::SpinAcquire { owner, request, lease_ms }),
        1 => owner().prop_map(|owner| Call::SpinRelease { owner }),
    ]
}
