//! Cases that random calls never or rarely reach.

use std::sync::Arc;
use std::time::Duration;

use super::step::{CLIENTS, Call, PickFence, PickRequest, SPIN_LEASES_MS, Step, Trouble, What};
use super::world::{START_US, Setting, World, client};
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::rules::lock::MAX_HOLDS;
use crate::protocol::script::{PubSubMode, ReplyError};
use crate::protocol::{
    Acquire, Acquired, Grant, Inspect, Mode, Release, ReleaseOutcome, ReleaseWhat, Renew, Renewed, Withdraw,
    Withdrawn,
};
use crate::time::server_time::{ServerTime, Ticket};

/// A call that takes the lock or waits for it.
pub(super) fn acquisition(world: &World<'_>, request: &RequestId) -> Acquire {
    Acquire {
        keys: world.keys[0].clone(),
        request: request.clone(),
        mode: Mode::Ask,
        lease: Duration::from_secs(30),
        not_after: Arc::new(ServerTime::MAX),
        ticket: None,
        floor: None,
    }
}

/// The same call as a step of a run.
fn acquire(request: usize, lease_ms: u64) -> Step {
    let call = Call::Acquire {
        request,
        mode: Mode::Ask,
        lease_ms,
        not_after_ms: 2_000,
        ticket_us: None,
        floor: None,
    };
    Step::Call {
        lock: 0,
        call,
        trouble: None,
    }
}

/// A step that releases the grant of this request.
fn release(request: usize, trouble: Option<Trouble>) -> Step {
    let call = Call::Release {
        request: PickRequest::Any(request),
        what: What::Grant(PickFence::Present),
        floor: None,
    };
    Step::Call {
        lock: 0,
        call,
        trouble,
    }
}

/// A step that takes a hold of the spin lock, always for the same owner.
fn spin_acquire(request: usize) -> Step {
    let call = Call::SpinAcquire {
        owner: 0,
        request,
        lease_ms: SPIN_LEASES_MS[0],
    };
    Step::Call {
        lock: 0,
        call,
        trouble: None,
    }
}

fn spin_release(trouble: Option<Trouble>) -> Step {
    Step::Call {
        lock: 0,
        call: Call::SpinRelease { owner: 0 },
        trouble,
    }
}

fn subscribe(client: usize) -> Step {
    Step::Subscribe { lock: 0, client }
}

#[test]
fn owner_gets_holds_up_to_its_limit() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let keys = world.keys[0].clone();
    let owner = world.owners[0].clone();
    let nth = |n| RequestId::new(&ClientId::from_number(1), Duration::from_secs(5), n, Some(&owner));
    let last = MAX_HOLDS as u64 - 1;
    let mut fence = None;
    for n in 0..=last {
        let call = acquisition(&world, &nth(n));
        let Acquired::Granted { grant, .. } = world.ask(&call) else {
            panic!("hold {n}");
        };
        fence.get_or_insert(grant.fence);
        assert_eq!(Some(grant.fence), fence);
    }
    let one_more = acquisition(&world, &nth(last + 1));
    assert_eq!(world.ask(&one_more), Acquired::Full);
    let mut release = Release {
        keys: keys.clone(),
        request: nth(0),
        what: ReleaseWhat::Grant(fence.unwrap()),
        floor: None,
    };
    assert_eq!(world.ask(&release).outcome, ReleaseOutcome::OneFewer);
    assert!(matches!(world.ask(&one_more), Acquired::Granted { .. }));
    // All holds but one expire together.
    world.now_us += 1_000_000;
    let renew = Renew {
        keys,
        request: nth(last),
        fence: fence.unwrap(),
        lease: Duration::from_secs(30),
        cap: ServerTime::MAX,
        on_demand: false,
    };
    assert!(matches!(world.ask(&renew), Renewed::Until(_)));
    world.now_us += 29_500_000;
    release.request = nth(last);
    assert_eq!(world.ask(&release).outcome, ReleaseOutcome::Released);
}

/// Race: An owner takes a lock again and again, without a limit.
#[test]
fn a_full_server_takes_no_further_hold_of_an_owner() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    // Two requests of one owner.
    let [first, second] = [4, 8].map(|n| world.requests[n].clone());
    world.ask(&acquisition(&world, &first));
    let call = acquisition(&world, &second);
    let refused = world.ask_in(Some(Trouble::Full), &call, PubSubMode::Plain);
    assert!(
        refused.as_ref().is_err_and(|error| error.contains("OOM")),
        "{refused:?}"
    );
    let (keys, request) = (world.keys[0].clone(), first);
    assert_eq!(world.ask(&Inspect { keys, request }).holders[0].holds, 1);
}

#[test]
fn call_for_the_lock_alone_does_all_but_queueing() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let [mine, other, owned, again] = [0, 1, 4, 8].map(|n| acquisition(&world, &world.requests[n].clone()));
    let release_of = |call: &Acquire, fence| Release {
        keys: call.keys.clone(),
        request: call.request.clone(),
        what: ReleaseWhat::Grant(fence),
        floor: None,
    };
    // Two rounds, because a lock that never existed takes another path.
    for _ in 0..2 {
        let Ok(Acquired::Granted { grant, .. }) = world.ask_alone(&mine) else {
            panic!("the lock is free");
        };
        // A waiting call is sent on to the whole script, and a try is told that the lock is held.
        assert_eq!(world.ask_alone(&other), Err(ReplyError::Elsewhere));
        let attempt = Acquire {
            mode: Mode::Try,
            ..other.clone()
        };
        assert!(matches!(world.ask_alone(&attempt), Ok(Acquired::Contended(_))));
        let released = world.ask_alone(&release_of(&mine, grant.fence)).unwrap();
        assert_eq!(released.outcome, ReleaseOutcome::Released);
    }
    // An owner takes two holds and releases both. The lease keeps the key for longer than usual.
    let owned = Acquire {
        lease: Duration::from_secs(600),
        ..owned
    };
    let Ok(Acquired::Granted { grant, .. }) = world.ask_alone(&owned) else {
        panic!("the lock is free");
    };
    assert!(matches!(world.ask_alone(&again), Ok(Acquired::Granted { .. })));
    for (call, outcome) in [
        (&again, ReleaseOutcome::OneFewer),
        (&owned, ReleaseOutcome::Released),
    ] {
        let released = world.ask_alone(&release_of(call, grant.fence)).unwrap();
        assert_eq!(released.outcome, outcome);
    }

    // While a request waits, the queue decides.
    let Ok(Acquired::Granted { grant, .. }) = world.ask_alone(&mine) else {
        panic!("the lock is free");
    };
    let inspect = Inspect {
        keys: mine.keys.clone(),
        request: mine.request.clone(),
    };
    let inspected = world.ask_alone(&inspect).unwrap();
    assert_eq!((inspected.holders[0].fence, inspected.waiting), (grant.fence, 0));
    assert!(matches!(world.ask(&other), Acquired::Contended(_)));
    assert_eq!(world.ask_alone(&inspect), Err(ReplyError::Elsewhere));
    assert_eq!(world.ask(&inspect).waiting, 1);
    let release = release_of(&mine, grant.fence);
    assert_eq!(world.ask_alone(&release), Err(ReplyError::Elsewhere));
    assert_eq!(world.ask(&release).outcome, ReleaseOutcome::Released);

    // The same is true of a withdrawal.
    let mut world = World::new(&mut setting);
    let withdraw = |call: &Acquire| Withdraw {
        keys: call.keys.clone(),
        requests: vec![call.request.clone()],
        floor: None,
    };
    let Ok(Acquired::Granted { .. }) = world.ask_alone(&mine) else {
        panic!("the lock is free");
    };
    let done = Withdrawn { more: false };
    assert_eq!(world.ask_alone(&withdraw(&other)), Ok(done));
    assert!(matches!(world.ask(&other), Acquired::Contended(_)));
    assert_eq!(world.ask_alone(&withdraw(&mine)), Err(ReplyError::Elsewhere));
    assert_eq!(world.ask(&withdraw(&other)), done);
    // The queue is empty now, but the summary does not know it until a call has looked.
    assert_eq!(world.ask_alone(&withdraw(&mine)), Err(ReplyError::Elsewhere));
    assert_eq!(world.ask(&withdraw(&mine)), done);

    // A call for the lock alone does not overtake a waiter after the lease has expired.
    let mut world = World::new(&mut setting);
    let [mine, other, third] = [0, 1, 2].map(|n| acquisition(&world, &world.requests[n].clone()));
    assert!(matches!(world.ask_alone(&mine), Ok(Acquired::Granted { .. })));
    assert!(matches!(world.ask(&other), Acquired::Contended(_)));
    world.now_us += 30_000_000;
    assert_eq!(world.ask_alone(&third), Err(ReplyError::Elsewhere));
}

#[test]
fn clients_need_not_listen_for_hand_over_with_uncounted_receivers() {
    let mut setting = Setting::start();
    for (way, is_handed_over) in [(PubSubMode::Plain, false), (PubSubMode::Uncounted, true)] {
        let mut world = World::new(&mut setting);
        let keys = world.keys[0].clone();
        let of = |client| RequestId::new(&ClientId::from_number(client), Duration::from_secs(5), 1, None);
        let call = acquisition(&world, &of(1));
        let Acquired::Granted { grant, .. } = world.ask(&call) else {
            panic!("the lock is free");
        };
        // This client has no subscription on this server.
        let call = acquisition(&world, &of(2));
        assert!(matches!(world.ask(&call), Acquired::Contended(_)));
        let release = Release {
            keys: keys.clone(),
            request: of(1),
            what: ReleaseWhat::Grant(grant.fence),
            floor: None,
        };
        assert_eq!(world.ask_by(&release, way).outcome, ReleaseOutcome::Released);
        let holder = world.ask(&Inspect { keys, request: of(1) }).holders.pop();
        assert_eq!(holder.is_some(), is_handed_over, "{way:?}: {holder:?}");
    }
}

#[test]
fn request_joining_its_owner_leaves_the_queue() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    // Two requests of one owner wait behind the holder, who is another owner.
    let (first, second) = (4, 8);
    assert_eq!(world.requests[first].owner(), world.requests[second].owner());
    world.run(&[
        acquire(0, 30_000),
        acquire(first, 30_000),
        acquire(second, 30_000),
        subscribe(first % CLIENTS),
        release(0, None),
        acquire(second, 30_000),
    ]);
    let [_, queue, ..] = world.snapshot().data;
    assert!(queue.is_empty(), "{queue}");
}

#[test]
fn first_hold_by_name_stands_for_the_owner_among_equal_deadlines() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let keys = world.keys[0].clone();
    let owner = world.owners[0].clone();
    let nth = |n| RequestId::new(&ClientId::from_number(1), Duration::from_secs(5), n, Some(&owner));
    let mut fence = None;
    for n in 10..20 {
        let call = acquisition(&world, &nth(n));
        let Acquired::Granted { grant, .. } = world.ask(&call) else {
            panic!("the owner gets no further hold");
        };
        fence = Some(grant.fence);
    }
    for n in 10..19 {
        let release = Release {
            keys: keys.clone(),
            request: nth(n),
            what: ReleaseWhat::Grant(fence.unwrap()),
            floor: None,
        };
        assert_eq!(world.ask(&release).outcome, ReleaseOutcome::OneFewer);
        let [hash, ..] = world.snapshot().data;
        let stands = format!(" {}", nth(n + 1));
        let is_summary = |field: &str| field.starts_with("hold=") && field.ends_with(&stands);
        assert!(hash.split(", ").any(is_summary), "{hash}");
    }
}

#[test]
fn a_hold_is_over_in_the_millisecond_of_its_deadline() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    world.run(&[acquire(4, 30_000), acquire(8, 1_000)]);
    for us in [999_000, 1_000, 28_999_000, 1_000] {
        let look = Step::Call {
            lock: 0,
            call: Call::Inspect,
            trouble: None,
        };
        world.run(&[Step::LocalTime { us }, look]);
    }
}

#[test]
fn client_is_absent_from_the_end_of_its_unclaimed_grant_until_it_calls() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let [first, mine, others] = [0, 1, 2].map(|n| world.requests[n].clone());
    let more = [3, 4].map(|n| RequestId::new(&client(1), Duration::from_secs(5), n, None));
    let grant = world.granted(&first);
    for request in [&mine, &more[0], &more[1], &others] {
        assert!(matches!(
            world.ask(&acquisition(&world, request)),
            Acquired::Contended(_)
        ));
    }
    for request in [&mine, &others] {
        let channel = world.keys[0].channel_of(&ClientId::from_wire(request.client()));
        world.command(&["SUBSCRIBE", &channel]);
    }
    world.release(&grant);
    world.now_us += 5_000_000;
    // This call finds the grant of `mine` unclaimed, and passes over the other requests of its client.
    assert!(matches!(
        world.ask(&acquisition(&world, &first)),
        Acquired::Contended(_)
    ));
    assert_eq!(world.holder(), others);
    assert!(world.snapshot().data[0].contains(&format!("absent={} ", mine.client())));
    // The client is present again with its next call.
    assert!(matches!(
        world.ask(&acquisition(&world, &more[1])),
        Acquired::Contended(_)
    ));
    assert!(!world.snapshot().data[0].contains("absent="));
}

#[test]
fn call_for_the_lock_alone_overlooks_no_waiter_beside_absent_clients() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let [first, absent, holder] = [0, 1, 2].map(|n| acquisition(&world, &world.requests[n].clone()));
    let grant = world.granted(&first.request);
    for call in [&absent, &holder] {
        assert!(matches!(world.ask(call), Acquired::Contended(_)));
        let channel = call.keys.channel_of(&ClientId::from_wire(call.request.client()));
        world.command(&["SUBSCRIBE", &channel]);
    }
    world.release(&grant);
    world.now_us += 5_000_000;
    assert!(matches!(world.ask(&first), Acquired::Contended(_)));
    assert!(world.snapshot().data[0].contains("absent="));

    let inspect = Inspect {
        keys: first.keys.clone(),
        request: first.request.clone(),
    };
    assert_eq!(world.ask_alone(&inspect), Err(ReplyError::Elsewhere));
    let attempt = Acquire {
        mode: Mode::Try,
        ..absent.clone()
    };
    assert_eq!(world.ask_alone(&attempt), Err(ReplyError::Elsewhere));
    let withdraw = Withdraw {
        keys: holder.keys.clone(),
        requests: vec![holder.request.clone()],
        floor: None,
    };
    assert_eq!(world.ask_alone(&withdraw), Err(ReplyError::Elsewhere));
    let fence = world.ask(&inspect).holders[0].fence;
    let release = Release {
        keys: holder.keys.clone(),
        request: holder.request.clone(),
        what: ReleaseWhat::Grant(fence),
        floor: None,
    };
    assert_eq!(world.ask_alone(&release), Err(ReplyError::Elsewhere));
}

#[test]
fn no_more_than_a_hundred_clients_are_noted_absent() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let of_client = |n| RequestId::new(&client(n), Duration::from_secs(5), 2, None);
    let grant = world.granted(&of_client(0));
    for n in 1..=102 {
        let channel = world.keys[0].channel_of(&client(n));
        world.command(&["SUBSCRIBE", &channel]);
        assert!(matches!(
            world.ask(&acquisition(&world, &of_client(n))),
            Acquired::Contended(_)
        ));
    }
    world.release(&grant);
    for _ in 1..=101 {
        world.now_us += 5_000_000;
        world.ask(&acquisition(&world, &of_client(0)));
    }
    assert_eq!(world.holder(), of_client(102));
    let absent: String = (2..=101).rev().map(|n| format!("{} ", client(n))).collect();
    let data = world.snapshot().data;
    assert!(data[0].contains(&format!("absent={absent},")), "{data:?}");
}

impl World<'_> {
    fn granted(&mut self, request: &RequestId) -> Grant {
        match self.ask(&acquisition(self, request)) {
            Acquired::Granted { grant, .. } => grant,
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, grant: &Grant) {
        let release = Release {
            keys: self.keys[0].clone(),
            request: grant.request.clone(),
            what: ReleaseWhat::Grant(grant.fence),
            floor: None,
        };
        assert_eq!(self.ask(&release).outcome, ReleaseOutcome::Released);
    }

    /// The request that holds the lock and is its own owner.
    fn holder(&mut self) -> RequestId {
        let (keys, request) = (self.keys[0].clone(), self.requests[0].clone());
        let owner = self.ask(&Inspect { keys, request }).holders.remove(0).owner;
        RequestId::from_wire(owner.as_str()).expect("a request")
    }
}

#[test]
fn a_repeated_call_for_a_spin_lock_counts_one_hold() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    // The last repeats run late: one after a release, and one when the lock is free.
    world.run(&[
        spin_acquire(1),
        spin_acquire(1),
        spin_acquire(2),
        spin_acquire(2),
        spin_release(None),
        spin_acquire(2),
        spin_release(None),
        spin_release(None),
        spin_acquire(2),
        spin_acquire(2),
        spin_release(None),
        spin_release(None),
    ]);
}

#[test]
fn a_full_server_takes_each_hold_of_a_spin_lock_back() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    world.run(&[
        spin_acquire(1),
        spin_acquire(2),
        spin_release(Some(Trouble::Full)),
        spin_release(Some(Trouble::Full)),
    ]);
}

#[test]
fn denied_push_keeps_the_lock_from_no_other_request() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    // The user may publish to the first client, but not to the second.
    world.run(&[
        acquire(0, 30_000),
        acquire(1, 30_000),
        subscribe(1),
        release(0, Some(Trouble::NoPublish)),
        acquire(0, 1_000),
        acquire(1, 30_000),
        Step::LocalTime { us: 1_000_000 },
        Step::Call {
            lock: 0,
            call: Call::Acquire {
                request: 3,
                mode: Mode::Ask,
                lease_ms: 30_000,
                not_after_ms: 2_000,
                ticket_us: None,
                floor: None,
            },
            trouble: Some(Trouble::NoPublish),
        },
    ]);
}

#[test]
fn earlier_ticket_replaces_the_place_of_a_late_first_attempt() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let requests = [0, 1, 2].map(|n| world.requests[n].clone());
    world.ask(&acquisition(&world, &requests[0]));
    world.now_us += 1_000;
    world.ask(&acquisition(&world, &requests[1]));
    world.now_us += 1_000;
    world.ask(&acquisition(&world, &requests[2]));
    let mut call = acquisition(&world, &requests[2]);
    call.ticket = Some(Ticket(START_US + 500));
    for moved in [true, false] {
        let Acquired::Contended(contended) = world.ask(&call) else {
            panic!("held")
        };
        assert_eq!(contended.ticket, call.ticket);
        assert_eq!(contended.enqueued, moved);
    }
}
