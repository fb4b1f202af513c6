//! The steps of a run: calls of four clients for the permits of one name, and events around them.

use proptest::prelude::*;

use super::super::step::Trouble;
use crate::protocol::Mode;
use crate::types::permits::MOST_PERMITS;

pub(super) const CLIENTS: usize = 4;
pub(super) const REQUESTS: usize = 24;

/// What the requests of a run ask for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Capacities {
    /// Each request names one of these.
    Of(&'static [u32]),
    /// Readers and writers.
    ReadWrite,
}

impl Capacities {
    /// The weight and the capacity of a request.
    pub(super) fn of(self, request: usize) -> (u32, u32) {
        match self {
            Capacities::Of(capacities) => {
                let capacity = capacities[request % capacities.len()];
                (1 + u32::try_from(request).unwrap() * 7 / 3 % capacity, capacity)
            }
            Capacities::ReadWrite if request % 5 == 0 => (MOST_PERMITS, MOST_PERMITS),
            Capacities::ReadWrite => (1, MOST_PERMITS),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Call {
        call: Call,
        trouble: Option<Trouble>,
    },
    Subscribe {
        client: usize,
    },
    Unsubscribe {
        client: usize,
    },
    /// Time passes on the server, or its clock is set back.
    Time {
        us: i64,
    },
    /// An operator deletes a key.
    Delete {
        key: Key,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Call {
    Acquire {
        request: PickRequest,
        mode: Mode,
        lease_ms: u64,
        not_after_ms: i64,
        ticket_us: Option<i64>,
    },
    Release {
        request: PickRequest,
        fence: PickFence,
        what: What,
    },
    Withdraw {
        requests: Vec<PickRequest>,
    },
    Renew {
        request: PickRequest,
        fence: PickFence,
        lease_ms: u64,
        cap_ms: i64,
    },
    Inspect,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Grant,
    /// The permits stay taken for so long at most, and until so long after now (ms).
    Keep(u64, i64),
    /// The fence is that of one of the holds.
    Force(usize),
    Shrink(u32),
}

/// Picks a request: one that has a hold, if there is any, or a given one.
#[derive(Clone, Copy, Debug)]
pub(super) enum PickRequest {
    Holder(usize),
    Any(usize),
}

/// Picks a fence: that of the request's hold, or one that was granted before.
#[derive(Clone, Copy, Debug)]
pub(super) enum PickFence {
    Its,
    Former,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Key {
    Lock,
    Queue,
    Timers,
    All,
}

pub(super) fn cases() -> impl Strategy<Value = (Capacities, Vec<Step>)> {
    let capacities = vec![
        Capacities::Of(&[1]),
        Capacities::Of(&[2]),
        Capacities::Of(&[3]),
        Capacities::Of(&[5]),
        Capacities::Of(&[2, 3, 5]),
        Capacities::Of(&[2, 3, 5]),
        Capacities::Of(&[1, 2, 9]),
        Capacities::ReadWrite,
        Capacities::ReadWrite,
    ];
    (
        prop::sample::select(capacities),
        prop::collection::vec(step(), 1..120),
    )
}

fn step() -> impl Strategy<Value = Step> {
    let client = || 0..CLIENTS;
    let troubles = vec![
        Trouble::NoPublish,
        Trouble::NoPublish,
        Trouble::Full,
        Trouble::ReadOnly,
    ];
    let trouble = prop::option::weighted(0.1, prop::sample::select(troubles));
    let tick = prop_oneof![
        8 => 0..2_000_i64, 6 => 0..600_000_i64, 2 => 0..12_000_000_i64, 1 => -6_000_000..0_i64,
        1 => -100_000_000..0_i64
    ];
    let keys = vec![Key::Lock, Key::Queue, Key::Timers, Key::Timers, Key::All];
    prop_oneof![
        260 => (call(), trouble).prop_map(|(call, trouble)| Step::Call { call, trouble }),
        50 => client().prop_map(|client| Step::Subscribe { client }),
        10 => client().prop_map(|client| Step::Unsubscribe { client }),
        50 => tick.prop_map(|us| Step::Time { us }),
        4 => prop::sample::select(keys).prop_map(|key| Step::Delete { key }),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let any = || (0..REQUESTS).prop_map(PickRequest::Any);
    let picked = || prop_oneof![2 => (0..REQUESTS).prop_map(PickRequest::Holder), 1 => any()];
    let asking = prop_oneof![12 => any(), 1 => picked()];
    let lease = || prop::sample::select(vec![100, 1_000, 5_000, 30_000, 90_000]);
    let fence = || prop_oneof![6 => Just(PickFence::Its), 1 => Just(PickFence::Former)];
    let mode = prop_oneof![
        2 => Just(Mode::Try), 12 => Just(Mode::Ask), 3 => Just(Mode::Poll)
    ];
    let not_after = prop_oneof![19 => Just(2_000), 1 => -100..100_i64];
    let ticket = prop_oneof![3 => Just(None), 1 => (-5_000_000..1_000_000_i64).prop_map(Some)];
    let cap = || prop_oneof![3 => Just(86_400_000), 1 => -1_000..10_000_i64];
    let what = prop_oneof![
        8 => Just(What::Grant), 4 => (lease(), cap()).prop_map(|(most, until)| What::Keep(most, until)),
        1 => (0..REQUESTS).prop_map(What::Force), 2 => (1..3_u32).prop_map(What::Shrink)
    ];
    prop_oneof![
        16 => (asking, mode, lease(), not_after, ticket).prop_map(
            |(request, mode, lease_ms, not_after_ms, ticket_us)| Call::Acquire {
                request, mode, lease_ms, not_after_ms, ticket_us
            }
        ),
        7 => (picked(), fence(), what)
            .prop_map(|(request, fence, what)| Call::Release { request, fence, what }),
        1 => prop::collection::vec(picked(), 1..4).prop_map(|requests| Call::Withdraw { requests }),
        4 => (picked(), fence(), lease(), cap())
            .prop_map(|(request, fence, lease_ms, cap_ms)| Call::Renew { request, fence, lease_ms, cap_ms }),
        1 => Just(Call::Inspect),
    ]
}
