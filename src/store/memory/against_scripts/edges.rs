//! What random calls don't come to.

use super::*;
use crate::script::ReplyError;

fn renewal(world: &World<'_>, request: usize, fence: Fence) -> Renew {
    Renew {
        keys: world.keys[0].clone(),
        request: world.requests[request].clone(),
        fence,
        lease: Duration::from_secs(30),
        cap: ServerTime::MAX,
    }
}

pub(super) fn acquisition(world: &World<'_>, request: &Request) -> Acquire {
    Acquire {
        keys: world.keys[0].clone(),
        request: request.clone(),
        mode: Mode::Open,
        lease: Duration::from_secs(30),
        not_after: ServerTime::MAX,
        ticket: None,
        heartbeat: Duration::from_secs(15),
    }
}

#[test]
fn a_newer_format_is_left_as_it_is() {
    fn refused(world: &mut World<'_>, call: &impl Operation) {
        let reply = world.scripts.call(&call.invocation(), START_US);
        assert!(matches!(call.read(&reply), Err(ReplyError::NewerFormat)));
    }
    let mut scripts = Scripts::start(BOUND);
    let mut world = World::new(&mut scripts);
    let keys = world.keys[0].clone();
    let fence = Fence::new(START_US).unwrap();
    world.scripts.tell(&[
        "HSET",
        &keys.lock,
        "v",
        "2",
        "fence",
        &fence.to_string(),
        "holds",
        "many",
    ]);
    world.scripts.tell(&["PEXPIRE", &keys.lock, "60000"]);
    let before = world.scripts.data(&keys);
    let request = world.requests[0].clone();
    let acquire = acquisition(&world, &request);
    refused(&mut world, &acquire);
    let renew = renewal(&world, 0, fence);
    refused(&mut world, &renew);
    for what in [
        ReleaseWhat::Grant(fence),
        ReleaseWhat::Out,
        ReleaseWhat::Force(fence),
    ] {
        let release = Release {
            keys: keys.clone(),
            request: request.clone(),
            what,
        };
        refused(&mut world, &release);
    }
    let inspect = Inspect {
        keys: keys.clone(),
        request,
    };
    refused(&mut world, &inspect);
    assert_eq!(world.scripts.data(&keys), before);
}

#[test]
fn one_owner_may_hold_ten_thousand_times() {
    let mut scripts = Scripts::start(BOUND);
    let mut world = World::new(&mut scripts);
    let keys = world.keys[0].clone();
    let owner = world.owners[0].clone();
    let nth = |n| Request::new(&ClientId::from_number(1), Duration::from_secs(5), n, Some(&owner));
    for n in 0..2 {
        let call = acquisition(&world, &nth(n));
        assert!(matches!(world.ask(&call), Acquired::Granted(_)));
    }
    // As further calls would write it, one by one.
    let until = (START_US / 1000 + 30_000).to_string();
    for first in (2..10_000).step_by(1_000) {
        let fields: Vec<_> = (first..(first + 1_000).min(10_000))
            .map(|n| format!("h:{}", nth(n)))
            .collect();
        let hold = format!("{until} 30000");
        let pairs = fields.iter().flat_map(|field| [field.as_str(), hold.as_str()]);
        let command: Vec<_> = ["HSET", keys.lock.as_str()].into_iter().chain(pairs).collect();
        world.scripts.tell(&command);
    }
    world.scripts.tell(&["HSET", &keys.lock, "holds", "10000"]);

    let call = acquisition(&world, &nth(10_000));
    let Acquired::Granted(grant) = world.ask(&call) else {
        panic!("one more hold");
    };
    assert_eq!(grant.fence.get(), START_US);
    let mut release = Release {
        keys,
        request: nth(0),
        what: ReleaseWhat::Grant(grant.fence),
    };
    assert_eq!(world.ask(&release).outcome, ReleaseOutcome::OneFewer);
    // All but one run out at once.
    world.now_us += 1_000_000;
    let mut renew = renewal(&world, 0, grant.fence);
    renew.request = nth(10_000);
    assert!(matches!(world.ask(&renew), Renewed::Until(_)));
    world.now_us += 29_500_000;
    release.request = nth(10_000);
    assert_eq!(world.ask(&release).outcome, ReleaseOutcome::Released);
}

#[test]
fn who_joins_its_owner_is_queued_no_longer() {
    let mut scripts = Scripts::start(BOUND);
    let mut world = World::new(&mut scripts);
    // Two requests of one owner, behind a holder of another.
    let (first, second) = (4, 8);
    assert_eq!(world.requests[first].owner(), world.requests[second].owner());
    let acquire = |request| Step::Acquire {
        lock: 0,
        request,
        mode: Mode::Open,
        lease_ms: 30_000,
        not_after_ms: 2_000,
        ticket_us: None,
        heartbeat_ms: 15_000,
    };
    for step in [
        acquire(0),
        acquire(first),
        acquire(second),
        Step::Subscribe {
            lock: 0,
            client: first % CLIENTS,
        },
        Step::Release {
            lock: 0,
            request: 0,
            what: What::Grant(Which::Present),
        },
        acquire(second),
    ] {
        world.step(&step);
    }
    let keys = world.keys[0].clone();
    let [_, queue, ..] = world.scripts.data(&keys);
    assert!(queue.is_empty(), "{queue:?}");
}

#[test]
fn of_holds_that_end_together_the_first_by_name_stands_for_the_owner() {
    let mut scripts = Scripts::start(BOUND);
    let mut world = World::new(&mut scripts);
    let keys = world.keys[0].clone();
    let owner = world.owners[0].clone();
    let nth = |n| Request::new(&ClientId::from_number(1), Duration::from_secs(5), n, Some(&owner));
    let mut fence = None;
    for n in 10..20 {
        let call = acquisition(&world, &nth(n));
        let Acquired::Granted(grant) = world.ask(&call) else {
            panic!("one more hold");
        };
        fence = Some(grant.fence);
    }
    for n in 10..19 {
        let release = Release {
            keys: keys.clone(),
            request: nth(n),
            what: ReleaseWhat::Grant(fence.unwrap()),
        };
        assert_eq!(world.ask(&release).outcome, ReleaseOutcome::OneFewer);
        let [hash, ..] = world.scripts.data(&keys);
        let at = hash.iter().position(|field| field == "request").unwrap();
        assert_eq!(hash[at + 1], nth(n + 1).as_str());
    }
}

#[test]
fn a_hold_is_over_in_the_millisecond_of_its_deadline() {
    let mut scripts = Scripts::start(BOUND);
    let mut world = World::new(&mut scripts);
    for (request, lease_ms) in [(4, 30_000), (8, 1_000)] {
        world.step(&Step::Acquire {
            lock: 0,
            request,
            mode: Mode::Open,
            lease_ms,
            not_after_ms: 2_000,
            ticket_us: None,
            heartbeat_ms: 15_000,
        });
    }
    for us in [999_000, 1_000, 28_999_000, 1_000] {
        world.step(&Step::Tick { us });
        world.step(&Step::Inspect { lock: 0 });
    }
}

#[test]
fn a_push_that_the_acl_refuses_is_told_to_who_releases() {
    let mut scripts = Scripts::start(BOUND);
    let mut world = World::new(&mut scripts);
    let requests = [world.requests[0].clone(), world.requests[1].clone()];
    let [call, next] = [0, 1].map(|n| acquisition(&world, &requests[n]));
    let Acquired::Granted(grant) = world.ask(&call) else {
        panic!("it is free");
    };
    assert!(matches!(world.ask(&next), Acquired::Contended(_)));
    world
        .scripts
        .tell(&["ACL", "SETUSER", "default", "resetchannels"]);
    let release = Release {
        keys: world.keys[0].clone(),
        request: call.request,
        what: ReleaseWhat::Grant(grant.fence),
    };
    let released = world.ask(&release);
    assert_eq!(released.outcome, ReleaseOutcome::Released);
    assert!(released.denied);
}
