//! What random calls don't come to.

use std::time::Duration;

use super::world::{START_US, Setting, World};
use crate::key::{ClientId, Request};
use crate::lease::ServerTime;
use crate::store::{Acquire, Acquired, Mode, Release, ReleaseOutcome, ReleaseWhat, Renew, Renewed};

#[test]
fn one_owner_may_hold_ten_thousand_times() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let keys = world.keys[0].clone();
    let owner = world.owners[0].clone();
    let nth = |n| Request::new(&ClientId::from_number(1), Duration::from_secs(5), n, Some(&owner));
    let acquire = |request| Acquire {
        keys: keys.clone(),
        request,
        mode: Mode::Open,
        lease: Duration::from_secs(30),
        not_after: ServerTime::MAX,
        ticket: None,
        heartbeat: Duration::from_secs(15),
    };
    for n in 0..2 {
        assert!(matches!(world.ask(&acquire(nth(n))), Acquired::Granted(_)));
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
        world.tell(&command);
    }
    world.tell(&["HSET", &keys.lock, "holds", "10000"]);

    let Acquired::Granted(grant) = world.ask(&acquire(nth(10_000))) else {
        panic!("one more hold");
    };
    assert_eq!(grant.fence.get(), START_US);
    let mut release = Release {
        keys: keys.clone(),
        request: nth(0),
        what: ReleaseWhat::Grant(grant.fence),
    };
    assert_eq!(world.ask(&release).outcome, ReleaseOutcome::OneFewer);
    // All but one run out at once.
    world.now_us += 1_000_000;
    let renew = Renew {
        keys: keys.clone(),
        request: nth(10_000),
        fence: grant.fence,
        lease: Duration::from_secs(30),
        cap: ServerTime::MAX,
    };
    assert!(matches!(world.ask(&renew), Renewed::Until(_)));
    world.now_us += 29_500_000;
    release.request = nth(10_000);
    assert_eq!(world.ask(&release).outcome, ReleaseOutcome::Released);
}
