//! While most callers of a lock give up, those who go on waiting are served soon all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlock::{Lock, LockManager};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{Backend, in_a_quorum, on_each_backend};

on_each_backend! {
    patient_callers_are_served_soon_after_a_long_hold,
    patient_callers_are_served_soon_among_callers_of_any_patience,
}

in_a_quorum! {
    patient_callers_are_served_soon_after_a_long_hold,
    patient_callers_are_served_soon_among_callers_of_any_patience,
}

const IMPATIENT: usize = 200;
const SOON: Duration = Duration::from_secs(1);

/// Tasks that take the lock again and again, hold it for this long, and drop the wait after their patience.
struct Impatient {
    tasks: JoinSet<()>,
    is_over: Arc<AtomicBool>,
}

impl Impatient {
    fn start(locks: &LockManager, held: Duration, patience: fn(usize) -> Duration) -> Impatient {
        let is_over = Arc::<AtomicBool>::default();
        let mut tasks = JoinSet::new();
        for task in 0..IMPATIENT {
            let (lock, is_over) = (locks.lock("a"), Arc::clone(&is_over));
            tasks.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok(guard) = timeout(patience(task), lock.acquire()).await {
                        let guard = guard.unwrap();
                        sleep(held).await;
                        guard.release().await.unwrap();
                    }
                }
            });
        }
        Impatient { tasks, is_over }
    }

    async fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.tasks.join_all().await;
    }
}

/// Waits for the lock without a bound, holds it for this long, and returns when it was granted.
async fn granted(lock: Lock, held: Duration) -> Instant {
    let guard = lock.acquire().await.unwrap();
    let at = Instant::now();
    sleep(held).await;
    guard.release().await.unwrap();
    at
}

/// Race: Those who give up leave the others behind newcomers for as long as they keep coming.
async fn patient_callers_are_served_soon_after_a_long_hold(backend: Backend) {
    let held = Duration::from_millis(5);
    let locks = backend.client().await;
    let guard = locks.lock("a").acquire().await.unwrap();
    let impatient = Impatient::start(&locks, held, |_| Duration::from_millis(100));
    sleep(SOON).await;
    // Some have the patience to wait for almost as long as the lock is held.
    let hold = Duration::from_secs(if backend.is_in_memory() { 20 } else { 6 });
    let mut late = JoinSet::new();
    for _ in 0..3 {
        late.spawn(timeout(hold - SOON, locks.lock("a").acquire()));
    }
    sleep(hold).await;
    assert!(late.join_all().await.iter().all(Result::is_err));
    let mut patient = JoinSet::new();
    for _ in 0..6 {
        patient.spawn(granted(locks.lock("a"), held));
    }
    sleep(Duration::from_millis(10)).await;
    guard.release().await.unwrap();
    let released = Instant::now();
    for granted in patient.join_all().await {
        let waited = granted - released;
        assert!(waited < SOON + backend.slack(), "{waited:?}");
    }
    impatient.end().await;
}

/// Race: Those who give up leave the others behind newcomers for as long as they keep coming.
async fn patient_callers_are_served_soon_among_callers_of_any_patience(backend: Backend) {
    /// From 10 ms to 2.5 s, of which short ones are more frequent.
    fn patience(task: usize) -> Duration {
        Duration::from_millis(10 << (task % 9).min(task / 9 % 9))
    }
    let locks = backend.client().await;
    let impatient = Impatient::start(&locks, Duration::from_millis(1), patience);
    sleep(SOON).await;
    let end = Instant::now() + 4 * SOON;
    let mut patient = JoinSet::new();
    for _ in 0..4 {
        let locks = locks.clone();
        patient.spawn(async move {
            let mut waits = Vec::new();
            while Instant::now() < end {
                let asked = Instant::now();
                waits.push(granted(locks.lock("a"), Duration::from_millis(1)).await - asked);
                sleep(Duration::from_millis(20)).await;
            }
            waits
        });
    }
    let mut waits = patient.join_all().await.concat();
    impatient.end().await;
    waits.sort_unstable();
    let (median, longest) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    assert!(
        median < Duration::from_millis(600) + backend.slack(),
        "{median:?}"
    );
    assert!(longest < SOON + backend.slack(), "{longest:?}");
}
