//! Settings and names that are not allowed are refused before anything is sent. The error names the setting
//! and its limits.

use std::time::Duration;

use fairlock::{Error, Fence, Lock, LockManager, LockManagerBuilder, MemoryStore, Owner};
use futures_util::FutureExt;

use crate::backend::{Backend, in_a_quorum, on_each_backend, with_local_handoffs};

on_each_backend! {
    a_bad_option_of_a_lock_is_refused_before_anything_is_sent,
    a_bad_name_is_refused_before_anything_is_sent,
    a_good_name_is_allowed,
    the_limits_themselves_are_allowed,
}

with_local_handoffs! {
    a_bad_option_of_a_lock_is_refused_before_anything_is_sent,
    a_bad_name_is_refused_before_anything_is_sent,
    a_good_name_is_allowed,
    the_limits_themselves_are_allowed,
}

in_a_quorum! {
    a_bad_option_of_a_lock_is_refused_before_anything_is_sent,
    a_bad_name_is_refused_before_anything_is_sent,
    a_good_name_is_allowed,
    the_limits_themselves_are_allowed,
}

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the message of a refusal, which states the value and the limits.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(error @ Error::Invalid(_)) => {
            assert!(!error.is_transient());
            error.to_string()
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_bad_setting_is_refused_before_anything_is_sent() {
    let new = LockManager::builder;
    let cases: Vec<(LockManagerBuilder, &str, &str)> = vec![
        (new().lease(Duration::ZERO), "lease 0ns", "from 100ms"),
        (new().lease(Duration::from_nanos(1)), "lease 1ns", "from 100ms"),
        (new().lease(99 * MS), "lease 99ms", "from 100ms"),
        (new().lease(DAY + MS), "lease 86400.001s", "to 86400s"),
        (
            new().claim_window(Duration::ZERO),
            "claim_window 0ns",
            "from 100ms",
        ),
        (new().claim_window(31_000 * MS), "claim_window 31s", "to 30s"),
        (
            new().lease(200 * MS).claim_window(201 * MS),
            "claim_window 201ms",
            "to 200ms",
        ),
        (new().label(""), "label \"\"", "1 to 64 bytes"),
        (new().label("web 7"), "label \"web 7\"", "printable ASCII"),
        (new().label("x".repeat(65)), "label \"xxx", "1 to 64 bytes"),
        (
            new().server_timeout(Duration::ZERO),
            "server_timeout 0ns",
            "from 100ms",
        ),
        (new().server_timeout(Duration::MAX), "server_timeout", "to 86400s"),
        (new().max_waiters(0), "max_waiters 0", "at least 1"),
        (new().local_handoffs(0), "local_handoffs 0", "from 1 to 1000"),
        (
            new().local_handoffs(1001),
            "local_handoffs 1001",
            "from 1 to 1000",
        ),
        (new().local_handoffs(u32::MAX), "local_handoffs", "from 1 to 1000"),
        (new().retain(Duration::ZERO), "retain 0ns", "from 1ms to 10s"),
        (new().lease(300 * MS).retain(101 * MS), "retain 101ms", "to 100ms"),
        (new().prefix(""), "prefix \"\"", "must not"),
        (new().prefix("{a}"), "prefix \"{a}\"", "brace"),
        (new().prefix("a}"), "prefix \"a}\"", "brace"),
        (new().prefix("a".repeat(513)), "prefix", "512 bytes"),
        (new().prefix("a:queue"), "\"a:queue\"", "must not end"),
        (new().prefix("a:timers"), "\"a:timers\"", "must not end"),
        (new().prefix("a:unlock"), "\"a:unlock\"", "must not end"),
        (new().prefix("a:spin"), "\"a:spin\"", "must not end"),
    ];
    for (builder, value, limit) in cases {
        // Nothing listens at this address, so an attempt to connect would give a different error.
        let messages = [
            refused(builder.clone().in_memory(&MemoryStore::new())),
            refused(builder.connect("redis://127.0.0.1:1").await),
        ];
        for message in messages {
            assert!(message.contains(value) && message.contains(limit), "{message}");
        }
    }
    for url in [
        "",
        "127.0.0.1",
        "http://127.0.0.1",
        "redis://:port",
        "redis://127.0.0.1:1:2",
    ] {
        refused(LockManager::connect(url).await);
    }
}

async fn a_bad_option_of_a_lock_is_refused_before_anything_is_sent(backend: Backend) {
    let client = backend.client().await;
    let lock = || client.lock("a");
    // Of a time without renewals; in a quorum it is that of a restart.
    let longest = if backend.is_a_quorum() { DAY } else { 30 * DAY };
    let to = &*format!("to {longest:?}");
    let long = "a".repeat(65);
    let cases_of_place = if backend.is_a_quorum() {
        let refused = "must not be set in a quorum";
        vec![
            (lock().owner(&Owner::new()), "owner", refused),
            (lock().retain(10 * MS), "retain", "not in a quorum"),
            (lock().at_least(MS), "at_least", refused),
            (lock().at_least(MS), "at_least", "keep the guard for that long"),
            (lock().at_least(31 * DAY), "at_least", refused),
        ]
    } else {
        vec![
            (
                lock().owner(&Owner::new()).retain(10 * MS),
                "retain",
                "without an owner",
            ),
            (lock().retain(DAY), "retain 86400s", "from 1ms"),
            (lock().at_least(Duration::ZERO), "at_least 0ns", "from 1ms"),
            (lock().at_least(longest + MS), "at_least", to),
            (
                lock().at_least(DAY).max_hold(DAY - MS),
                "at_least 86400s",
                "max_hold, 86399.999s",
            ),
            (
                lock().at_least(DAY).lease(DAY - MS).auto_renew(false),
                "at_least 86400s",
                "lease, 86399.999s",
            ),
        ]
    };
    let cases: Vec<(Lock, &str, &str)> = vec![
        (lock().group(""), "group \"\"", "1 to 64 bytes"),
        (lock().group(&long), &long, "1 to 64 bytes"),
        (lock().group("a\nb"), "group \"a\\nb\"", "without control"),
        (lock().lease(Duration::ZERO), "lease 0ns", "from 100ms"),
        (lock().lease(99 * MS), "lease 99ms", "from 100ms"),
        (lock().lease(DAY + MS), "lease 86400.001s", "to 86400s"),
        (
            lock().lease(99 * MS).auto_renew(false),
            "lease 99ms",
            "from 100ms",
        ),
        (lock().lease(longest + MS).auto_renew(false), "lease", to),
        (lock().lease(Duration::MAX).auto_renew(false), "lease", to),
        (lock().max_hold(99 * MS), "max_hold 99ms", "at least 100ms"),
        (lock().max_hold(Duration::ZERO), "max_hold 0ns", "at least 100ms"),
        (lock().local_handoffs(0), "local_handoffs 0", "from 1 to 1000"),
        (
            lock().local_handoffs(1001),
            "local_handoffs 1001",
            "from 1 to 1000",
        ),
        (lock().max_hold(DAY).retain(10 * MS), "retain", "a max_hold"),
        (
            lock().auto_renew(false).retain(10 * MS),
            "retain",
            "a lease that is renewed",
        ),
    ];
    for (lock, value, limit) in cases.into_iter().chain(cases_of_place) {
        for message in at_once(&lock) {
            assert!(message.contains(value) && message.contains(limit), "{message}");
        }
    }
}

/// Race: A name breaks the placement of its keys.
async fn a_bad_name_is_refused_before_anything_is_sent(backend: Backend) {
    let client = backend.client().await;
    let long = "a".repeat(513);
    let wide = "ä".repeat(257);
    let names = [
        ("", "must not be empty"),
        (&long, "at most 512"),
        (&wide, "at most 512"),
        ("{}:a", "hash tag"),
        ("{a}", "hash tag"),
        ("{a", "hash tag"),
        ("{{a}}:b", "hash tag"),
        ("}a", "braces"),
        ("a}", "braces"),
        ("a{b}", "braces"),
        ("{a}:{b}", "braces"),
    ];
    for (name, why) in names {
        let lock = client.lock(name);
        assert_eq!(lock.name(), name);
        for message in at_once(&lock) {
            assert!(message.contains(why), "{name:?}: {message}");
        }
    }
}

/// Returns the result of each call at its first poll, before anything can be sent to the server.
#[track_caller]
fn at_once(lock: &Lock) -> Vec<String> {
    let fence = Fence::try_from(1_u64).unwrap();
    let answers = [
        lock.acquire().now_or_never().map(|answer| answer.map(drop)),
        lock.acquire_timeout(MS)
            .now_or_never()
            .map(|answer| answer.map(drop)),
        lock.try_acquire().now_or_never().map(|answer| answer.map(drop)),
        lock.with(async |_| ()).now_or_never(),
        lock.status().now_or_never().map(|answer| answer.map(drop)),
        lock.force_release(fence)
            .now_or_never()
            .map(|answer| answer.map(drop)),
    ];
    answers
        .into_iter()
        .map(|answer| refused(answer.expect("an answer at once")))
        .collect()
}

async fn a_good_name_is_allowed(backend: Backend) {
    let client = backend.client().await;
    let longest = "a".repeat(512);
    for name in [
        "a",
        " ",
        "orders:42",
        "{user:7}:cart",
        "naïve ☂",
        "line\nbreak",
        "\u{0}",
        "*?[a-z]",
        &longest,
    ] {
        let guard = client.lock(name).acquire().await.unwrap();
        assert_eq!(guard.name(), name);
        guard.release().await.unwrap();
    }
}

async fn the_limits_themselves_are_allowed(backend: Backend) {
    // A lock with a shorter lease is retained for less time, and one that cannot be retained is not.
    let retains = backend.client_with(|settings| settings.retain(1000 * MS)).await;
    for renews in [true, false] {
        drop(
            retains
                .lock("b")
                .lease(200 * MS)
                .auto_renew(renews)
                .acquire()
                .await
                .unwrap(),
        );
    }
    let least = backend
        .client_with(|settings| {
            settings
                .lease(100 * MS)
                .claim_window(100 * MS)
                .server_timeout(10_000 * MS)
                .max_waiters(1)
                .local_handoffs(1)
        })
        .await;
    drop(least.lock("a").acquire().await.unwrap());
    let most = backend
        .client_with(|settings| {
            settings
                .lease(DAY)
                .claim_window(DAY)
                .server_timeout(DAY)
                .max_waiters(usize::MAX)
        })
        .await;
    let lock = most.lock("a").max_hold(Duration::MAX);
    let guard = lock.acquire().await.unwrap();
    assert!(guard.lease().remaining > DAY / 2);
    guard.release().await.unwrap();
    let guard = most.lock("a").local_handoffs(1000).acquire().await.unwrap();
    guard.release().await.unwrap();
    let guard = most
        .lock("a")
        .lease(DAY)
        .auto_renew(false)
        .acquire()
        .await
        .unwrap();
    guard.release().await.unwrap();
}
