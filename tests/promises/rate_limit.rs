//! Rate limits (`docs/permits.md`) as a provider sees them, which counts calls as they arrive.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairlock::{LockManager, MemoryStore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
/// How long calls are on their way, at most.
const WAY: Duration = Duration::from_millis(200);
/// What the provider allows within a second.
const LIMIT: usize = 50;

/// The most calls of ten processes that arrive within a second, if each begins after a grant of its own.
async fn most_within_a_second(permits: u32, at_least: Duration) -> usize {
    let (store, arrived) = (MemoryStore::new(), Arc::new(Mutex::new(Vec::new())));
    let (mut set, end) = (JoinSet::new(), Instant::now() + 20 * SECOND);
    for _ in 0..10 {
        let locks = LockManager::builder().in_memory(&store).unwrap();
        let limited = locks.semaphore("api", permits).at_least(at_least);
        let limited = limited.lease(Duration::from_millis(500));
        for _ in 0..20 {
            let (limited, arrived) = (limited.clone(), Arc::clone(&arrived));
            set.spawn(async move {
                while Instant::now() < end {
                    drop(limited.acquire().await.unwrap());
                    sleep(WAY.mul_f64(fastrand::f64())).await;
                    arrived.lock().unwrap().push(Instant::now());
                }
            });
        }
    }
    set.join_all().await;
    let mut arrived = arrived.lock().unwrap().clone();
    arrived.sort();
    let within = |at: &Instant| {
        arrived
            .iter()
            .filter(|other| (*at..*at + SECOND).contains(other))
            .count()
    };
    arrived.iter().map(within).max().unwrap()
}

#[tokio::test(start_paused = true)]
async fn few_permits_for_a_short_time_stay_below_the_limit_of_a_provider() {
    let most = most_within_a_second(4, Duration::from_millis(100)).await;
    assert!(most > LIMIT / 2 && most <= 48, "{most}");
    // All grants of a second come at once, and those that are long on their way meet the next ones.
    let most = most_within_a_second(50, SECOND).await;
    assert!(most > LIMIT && most <= 2 * LIMIT, "{most}");
}
