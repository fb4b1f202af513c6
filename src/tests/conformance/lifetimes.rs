//! The exact times to live of keys. Random calls check only that most are long enough.

use std::time::Duration;

use uuid::Uuid;

use super::edges::acquisition;
use super::world::{Setting, World};
use crate::protocol::{Acquired, Mode, Release, ReleaseOutcome, ReleaseWhat, SpinAcquire, SpinAcquired};

/// The keys of a lock, in the order of a snapshot.
const LOCK: usize = 0;
const QUEUE: usize = 1;
const SPIN: usize = 2;

const RETENTION_MS: i64 = 60_000;
const SHORT: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(600);

/// How much longer than necessary a key may live.
const SLACK_MS: i64 = 10_000;

/// Checks that a key lives for this long, less the time that a busy machine took to ask, and not much longer.
#[track_caller]
fn assert_lives(world: &mut World<'_>, key: usize, expected_ms: i64) {
    let ttl = world.snapshot().kept_ms[key];
    let near = expected_ms - 10_000..=expected_ms + SLACK_MS;
    assert!(near.contains(&ttl), "{key}: {ttl} ms instead of {expected_ms}");
}

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap()
}

/// Sends an acquire of this request.
fn ask(world: &mut World<'_>, request: usize, mode: Mode) -> Acquired {
    let mut call = acquisition(world, &world.requests[request].clone());
    call.mode = mode;
    world.ask(&call)
}

#[test]
fn queue_lives_for_a_minute_after_its_first_request_and_each_poll() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let queue = world.keys[0].queue.clone();
    ask(&mut world, 0, Mode::Ask);
    ask(&mut world, 1, Mode::Ask);
    assert_lives(&mut world, QUEUE, RETENTION_MS);
    world.command(&["PEXPIRE", &queue, "5000"]);
    ask(&mut world, 1, Mode::Poll);
    assert_lives(&mut world, QUEUE, RETENTION_MS);
}

/// A key in use gets a surplus of time to live, and is only prolonged once that is used up.
#[test]
fn keys_in_constant_use_are_prolonged_once_in_ten_seconds() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    ask(&mut world, 0, Mode::Ask);
    ask(&mut world, 1, Mode::Ask);
    let kept_ms = world.snapshot().kept_ms;
    for (key, must_ms) in [(LOCK, 30_000), (QUEUE, 0)] {
        let spare_ms = kept_ms[key] - (must_ms + RETENTION_MS);
        assert!(
            (SLACK_MS / 2..=SLACK_MS).contains(&spare_ms),
            "{key}: {spare_ms} ms"
        );
    }
}

#[test]
fn a_lock_lives_for_a_minute_after_its_end() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let keys = world.keys[0].clone();
    let request = world.requests[0].clone();
    let mut call = acquisition(&world, &request);
    call.lease = LONG;
    let Acquired::Granted { grant, .. } = world.ask(&call) else {
        panic!("the lock is free");
    };
    assert_lives(&mut world, LOCK, ms(LONG) + RETENTION_MS);
    let release = Release {
        keys,
        request,
        what: ReleaseWhat::Grant(grant.fence),
        floor: None,
    };
    assert_eq!(world.ask(&release).outcome, ReleaseOutcome::Released);
    assert_lives(&mut world, LOCK, RETENTION_MS);
}

#[test]
fn a_hold_of_a_spin_lock_shortens_no_longer_one() {
    let mut setting = Setting::start();
    let mut world = World::new(&mut setting);
    let keys = world.keys[0].clone();
    for (n, lease) in [LONG, SHORT].into_iter().enumerate() {
        let call = SpinAcquire {
            keys: keys.clone(),
            owner: world.owners[0].clone(),
            request: Uuid::from_u128(n as u128),
            lease,
        };
        assert!(matches!(world.ask(&call), SpinAcquired::Held(_)));
    }
    assert_lives(&mut world, SPIN, ms(LONG));
}

/// The test's clock replaces only this part of the scripts.
#[test]
fn clock_is_read_correctly_in_every_microsecond() {
    let mut setting = Setting::start();
    let read = format!("{} return {{now_us, now}}", crate::protocol::script::CLOCK);
    let (mut before, mut short) = (String::new(), 0);
    while short < 3 {
        let reply = setting.scripts.evaluate(&read);
        let [us, ms] = reply.as_slice() else {
            panic!("{reply:?}")
        };
        assert_eq!(us.len(), 16, "{us}");
        assert_eq!(&us[..13], ms);
        assert!(*us > before, "{us} after {before}");
        // One in ten has a microsecond part that begins with a 0.
        short += usize::from(us.as_bytes()[10] == b'0');
        before.clone_from(us);
        std::thread::sleep(Duration::from_millis(3));
    }
}
