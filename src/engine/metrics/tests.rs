//! What reaches a recorder: gauges that return to 0, and the same events as in the counters.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{sleep, timeout};

use super::recorded::group_of;
use crate::{LockManager, MemoryStore, Quorum, Stats};

/// Runs `work` on one thread and a paused clock, with a recorder of its own.
fn recorded(work: impl AsyncFnOnce(&PrometheusHandle)) {
    let recorder = PrometheusBuilder::new().build_recorder();
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

/// Callers that try, wait, give up, drop their futures at any point, and hold a lock until its release, its
/// drop, its loss or its end by itself.
async fn contend(locks: LockManager, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    for _ in 0..60 {
        let lock = locks.lock(format!("group{}:{}", seed % 2, random.random_range(0..2)));
        let lock = match random.random_range(0..6) {
            0 => lock.lease(Duration::from_millis(150)).renew(false),
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

#[test]
fn gauges_return_to_zero_and_counts_agree_whatever_callers_do() {
    recorded(async |handle| {
        let clients = clients();
        let tasks = (0..24).zip(clients.iter().cycle());
        let tasks = tasks.map(|(seed, locks)| contend(locks.clone(), seed));
        futures_util::future::join_all(tasks).await;
        // The withdrawals of the last calls wait until these can run no more.
        sleep(Duration::from_secs(200)).await;
        for gauge in ["fairlock_waiters", "fairlock_held", "fairlock_releases_pending"] {
            let samples = samples(handle, gauge);
            assert!(!samples.is_empty(), "{gauge}");
            assert!(
                samples.values().all(|value| *value == 0.0),
                "{gauge}: {samples:?}"
            );
        }
        let acquires = |with: &str| sum(handle, "fairlock_acquire_duration_seconds_count", with);
        assert_eq!(acquires(""), total(&clients, |stats| stats.acquire_started));
        for (with, count) in [
            ("outcome=\"acquired\"", total(&clients, |stats| stats.acquired)),
            ("how=\"free\"", total(&clients, |stats| stats.acquired_at_once)),
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
            total(&clients, |stats| stats.released_by_drop)
        );
        assert_eq!(holds("end=\"lost\""), total(&clients, |stats| stats.lost));
        let lost = |with: &str| sum(handle, "fairlock_lease_lost_total", with);
        for (reason, count) in [
            ("expired", total(&clients, |stats| stats.lost_expired)),
            ("taken", total(&clients, |stats| stats.lost_taken)),
            ("max_hold", total(&clients, |stats| stats.lost_max_hold)),
        ] {
            assert_eq!(lost(reason), count, "{reason}");
            assert!(count > 0.0, "{reason} never happened");
        }
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
        let held_in = |group: &str| sum(handle, "fairlock_held", group);
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
        assert_eq!(samples(handle, "fairlock_held{").len(), 1001);
        let others = sum(handle, "fairlock_hold_duration_seconds_count", "\"other\"");
        assert_eq!(others, 10.0);
    });
}

#[test]
fn margins_and_missed_turns_are_those_of_the_counters() {
    use crate::tests::scripted_store;

    recorded(async |handle| {
        let store = MemoryStore::new();
        let (others, _) = scripted_store::client(&store, &[]);
        let (deaf, seen) = scripted_store::client(&store, &[]);
        let guard = others.lock("a").acquire().await.unwrap();
        sleep(Duration::from_secs(11)).await;
        let margin = |what: &str| samples(handle, &format!("fairlock_lease_margin_seconds_{what}"));
        assert_eq!(margin("count").values().sum::<f64>(), 1.0);
        let seconds = margin("sum").values().sum::<f64>();
        assert_eq!(others.stats().least_margin.unwrap().as_secs_f64(), seconds);

        seen.swallow_subscriptions();
        let waiting = [&deaf, &others].map(|locks| tokio::spawn(locks.lock("a").acquire()));
        sleep(Duration::from_millis(1)).await;
        guard.release().await.unwrap();
        sleep(Duration::from_secs(10)).await;
        assert_eq!(deaf.stats().missed_turns, 1);
        assert_eq!(sum(handle, "fairlock_turns_missed_total", "\"a\""), 1.0);
        for wait in waiting.into_iter().rev() {
            wait.await.unwrap().unwrap().release().await.unwrap();
        }
    });
}
