//! What reaches a recorder: gauges that return to 0, and the same events as in the counters.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{sleep, timeout};

use crate::engine::counters::{Correction, Counters, GuardEnd, How, Outcome};
use crate::engine::options::group_of;
use crate::tests::scripted_store;
use crate::{LockManager, MemoryStore, Quorum, Stats};

const SECOND: Duration = Duration::from_secs(1);
/// The default.
const LEASE: Duration = Duration::from_secs(30);

/// Runs `work` on one thread and a paused clock, with a recorder of its own.
fn recorded(work: impl AsyncFnOnce(&PrometheusHandle)) {
    let margins = Matcher::Full(MARGIN.to_owned());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(margins, &[10.0, 15.0, 20.0])
        .unwrap()
        .build_recorder();
    let handle = recorder.handle();
    ::metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(work(&handle));
    });
}

/// The samples whose names begin like this, with what stands between the braces.
fn samples(handle: &PrometheusHandle, name: &str) -> BTreeMap<String, f64> {
    let text = handle.render();
    let lines = text.lines().filter(|line| line.starts_with(name));
    let samples = lines.filter_map(|line| {
        let (of, value) = line.rsplit_once(' ')?;
        Some((of[name.len()..].to_owned(), value.parse().unwrap()))
    });
    samples.collect()
}

fn sum(handle: &PrometheusHandle, name: &str, with: &str) -> f64 {
    let samples = samples(handle, name);
    let with = samples.iter().filter(|(labels, _)| labels.contains(with));
    with.map(|(_, value)| *value).sum()
}

const MARGIN: &str = "fairlock_lease_margin_seconds";

/// How many margins were up to 10 s, up to 15 s, up to 20 s, and at all.
fn margins(handle: &PrometheusHandle) -> [f64; 4] {
    ["10", "15", "20", "+Inf"].map(|le| sum(handle, &format!("{MARGIN}_bucket"), &format!("le=\"{le}\"")))
}

/// A client of each kind.
fn clients() -> Vec<LockManager> {
    let servers = [(); 3].map(|()| MemoryStore::new());
    let store = MemoryStore::new();
    let in_quorum = LockManager::builder().connect_quorum(Quorum::in_memory(&servers));
    vec![
        LockManager::builder().in_memory(&store).unwrap(),
        LockManager::builder()
            .local_handoffs(4)
            .in_memory(&store)
            .unwrap(),
        in_quorum.now_or_never().unwrap().unwrap(),
    ]
}

/// How many calls each task makes.
const CALLS: u32 = 60;

/// Callers that try, wait, give up, drop their futures at any point, and hold a lock until its release, its
/// drop, its loss or its end by itself.
async fn contend(locks: LockManager, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    for _ in 0..CALLS {
        let lock = locks.lock(format!("group{}:{}", seed % 2, random.random_range(0..2)));
        let lock = match random.random_range(0..6) {
            0 => lock.lease(Duration::from_millis(150)).auto_renew(false),
            1 => lock.max_hold(Duration::from_millis(150)),
            _ => lock,
        };
        let patience = Duration::from_millis(random.random_range(0..40));
        let guard = match random.random_range(0..5) {
            0 => lock.try_acquire().await.ok(),
            1 => lock.acquire_timeout(patience).await.ok(),
            2 => timeout(patience, lock.acquire()).await.ok().and_then(Result::ok),
            3 => {
                drop(lock.acquire().now_or_never());
                None
            }
            _ => lock.acquire().await.ok(),
        };
        let Some(guard) = guard else { continue };
        match random.random_range(0..8) {
            0 => sleep(Duration::from_millis(200)).await,
            1 => drop(lock.force_release(guard.fence()).await),
            _ => sleep(Duration::from_millis(random.random_range(0..4))).await,
        }
        match random.random_range(0..3) {
            0 => drop(guard),
            1 => drop(guard.release().now_or_never()),
            _ => drop(guard.release().await),
        }
    }
}

fn total(clients: &[LockManager], count: impl Fn(&Stats) -> u64) -> f64 {
    clients.iter().map(|locks| count(&locks.stats()) as f64).sum()
}

/// The same for what is counted, and is no part of the `Stats`.
fn total_of(clients: &[LockManager], count: impl Fn(&Counters) -> u64) -> f64 {
    let counts = clients.iter().map(|locks| count(locks.place().counters()) as f64);
    counts.sum()
}

#[test]
fn gauges_return_to_zero_and_counts_agree_whatever_callers_do() {
    recorded(async |handle| {
        let clients = clients();
        const TASKS: u32 = 24;
        let tasks = (0..u64::from(TASKS)).zip(clients.iter().cycle());
        let tasks = tasks.map(|(seed, locks)| contend(locks.clone(), seed));
        futures_util::future::join_all(tasks).await;
        // The withdrawals of the last calls wait until these can run no more.
        sleep(Duration::from_secs(200)).await;
        for gauge in [
            "fairlock_waiters",
            "fairlock_guards_held",
            "fairlock_releases_pending",
        ] {
            let samples = samples(handle, gauge);
            assert!(!samples.is_empty(), "{gauge}");
            assert!(
                samples.values().all(|value| *value == 0.0),
                "{gauge}: {samples:?}"
            );
        }
        let acquires = |with: &str| sum(handle, "fairlock_acquire_duration_seconds_count", with);
        assert_eq!(acquires(""), f64::from(TASKS * CALLS), "each call has ended once");
        for (with, count) in [
            ("outcome=\"acquired\"", total(&clients, |stats| stats.acquired)),
            (
                "how=\"free\"",
                total_of(&clients, |counters| counters.ended(Outcome::Acquired(How::Free))),
            ),
            ("how=\"handed_over\"", total(&clients, |stats| stats.handed_over)),
            (
                "how=\"local_handoff\"",
                total(&clients, |stats| stats.local_handoffs),
            ),
            ("outcome=\"timeout\"", total(&clients, |stats| stats.timed_out)),
            ("outcome=\"busy\"", total(&clients, |stats| stats.busy)),
            ("outcome=\"cancelled\"", total(&clients, |stats| stats.cancelled)),
        ] {
            assert_eq!(acquires(with), count, "{with}");
            assert!(count > 0.0, "{with} never happened");
        }
        let holds = |with: &str| sum(handle, "fairlock_hold_duration_seconds_count", with);
        assert_eq!(
            holds(""),
            total(&clients, |stats| stats.acquired),
            "each hold has ended once"
        );
        assert_eq!(
            holds("end=\"dropped\""),
            total_of(&clients, |counters| counters.holds_ended(GuardEnd::Dropped))
        );
        let any_reason = |stats: &Stats| stats.lost_expired + stats.lost_taken + stats.lost_max_hold;
        assert_eq!(holds("end=\"lost\""), total(&clients, any_reason));
        let lost = |with: &str| sum(handle, "fairlock_lease_lost_total", with);
        for (reason, count) in [
            ("expired", total(&clients, |stats| stats.lost_expired)),
            ("taken", total(&clients, |stats| stats.lost_taken)),
            ("max_hold", total(&clients, |stats| stats.lost_max_hold)),
        ] {
            assert_eq!(lost(reason), count, "{reason}");
            assert!(count > 0.0, "{reason} never happened");
        }
        let corrected = |with: &str| sum(handle, "fairlock_votes_corrected_total", with);
        for (with, correction) in [
            ("correction=\"raised\"", Correction::Raised),
            ("correction=\"yielded\"", Correction::Yielded),
            ("correction=\"repaired\"", Correction::Repaired),
        ] {
            let count = total_of(&clients, |counters| counters.corrections(correction));
            assert_eq!(corrected(with), count, "{with}");
        }
    });
}

#[test]
fn counters_of_a_group_begin_at_zero_and_those_of_votes_only_in_a_quorum() {
    recorded(async |handle| {
        let votes = || samples(handle, "fairlock_votes_corrected_total");
        let [one, _, quorum] = clients().try_into().unwrap();
        drop(one.lock("a").acquire().await.unwrap());
        assert!(votes().is_empty());
        drop(quorum.lock("a").acquire().await.unwrap());
        assert_eq!(votes().into_values().collect::<Vec<_>>(), [0.0; 3]);
        assert_eq!(sum(handle, "fairlock_turns_missed_total", "\"a\""), 0.0);
    });
}

#[test]
fn a_lock_is_counted_in_the_group_that_is_set_or_in_that_of_its_name() {
    for (name, group) in [
        ("invoice:42", "invoice"),
        ("invoice:42:line:7", "invoice"),
        ("invoice", "invoice"),
        ("{user:7}:cart", "user"),
        ("{cart}:7", "cart"),
        (":7", ":7"),
    ] {
        assert_eq!(group_of(name), group, "{name}");
    }
    recorded(async |handle| {
        let locks = LockManager::in_memory();
        let held = locks.lock("b9ef64a2").group("customer").acquire().await.unwrap();
        let held_in = |group: &str| sum(handle, "fairlock_guards_held", group);
        assert_eq!((held_in("customer"), held_in("b9ef64a2")), (1.0, 0.0));
        drop(held);
        assert_eq!(held_in("customer"), 0.0);
    });
}

#[test]
fn names_without_a_colon_make_a_bounded_number_of_groups() {
    recorded(async |handle| {
        let locks = LockManager::in_memory();
        for name in 0..1010 {
            locks
                .lock(format!("name-{name}"))
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
        assert_eq!(samples(handle, "fairlock_guards_held{").len(), 1001);
        let others = sum(handle, "fairlock_hold_duration_seconds_count", "\"other\"");
        assert_eq!(others, 10.0);
    });
}

#[test]
fn margins_are_those_of_whole_leases() {
    recorded(async |handle| {
        let [locks, _, quorum] = clients().try_into().unwrap();
        let mut before = 0.0;
        for locks in [&locks, &quorum] {
            let guard = locks.lock("a").acquire().await.unwrap();
            sleep(2 * LEASE).await;
            // A renewal is due after a third of the lease.
            let [_, half, two_thirds, all] = margins(handle);
            assert_eq!((half, two_thirds), (0.0, all));
            assert!(all > before);
            before = all;
            guard.release().await.unwrap();
        }
        // A claim renews a claim window, of which less is left.
        let guard = locks.lock("a").acquire().await.unwrap();
        let waiter = tokio::spawn(locks.lock("a").acquire());
        sleep(SECOND).await;
        let renewals = locks.stats().renewals;
        guard.release().await.unwrap();
        let _claimed = waiter.await.unwrap().unwrap();
        sleep(2 * SECOND).await;
        assert_eq!(locks.stats().renewals, renewals + 1);
        assert_eq!(margins(handle), [0.0, 0.0, before, before]);
    });
}

#[test]
fn late_renewal_shows_in_its_margin() {
    recorded(async |handle| {
        let (locks, seen) = scripted_store::client(&MemoryStore::new(), &[]);
        let _guard = locks.lock("a").acquire().await.unwrap();
        // The first renewal is due after a third of the lease, and fails. The next one is after a third of
        // the rest.
        sleep(LEASE / 3 - SECOND).await;
        seen.lose_calls(1);
        sleep(LEASE / 3).await;
        assert_eq!(margins(handle), [0.0, 1.0, 1.0, 1.0]);
    });
}

/// Its subscription is never confirmed, so the release passes it over, and another client has the lock.
#[test]
fn request_that_was_passed_over_has_missed_its_turn() {
    recorded(async |handle| {
        let store = MemoryStore::new();
        let (others, _) = scripted_store::client(&store, &[]);
        let (deaf, seen) = scripted_store::client(&store, &[]);
        let missed = || sum(handle, "fairlock_turns_missed_total", "\"a\"");
        seen.swallow_subscriptions();
        let guard = others.lock("a").acquire().await.unwrap();
        let waiting = [&deaf, &others].map(|locks| tokio::spawn(locks.lock("a").acquire()));
        sleep(Duration::from_millis(1)).await;
        assert_eq!(missed(), 0.0, "each has queued once");
        guard.release().await.unwrap();
        sleep(10 * SECOND).await;
        assert_eq!(missed(), 1.0);
        for wait in waiting.into_iter().rev() {
            wait.await.unwrap().unwrap().release().await.unwrap();
        }
    });
}
