//! A forced release that takes more than one call, and a status whose label is late.

use std::time::Duration;

use tokio::time::Instant;

use crate::MemoryStore;
use crate::tests::scripted_store::{Fate, client};

/// What the first call of a forced release comes to, and how many there are.
async fn forced(fate: Fate) -> (bool, usize) {
    let store = MemoryStore::new();
    let (others, _) = client(&store, &[]);
    let guard = others.lock("a").acquire().await.unwrap();
    let (locks, seen) = client(&store, &[fate]);
    let released = locks.lock("a").force_release(guard.fence()).await.unwrap();
    (released, seen.releases())
}

#[tokio::test(start_paused = true)]
async fn forced_release_with_a_lost_reply_counts_as_done() {
    assert_eq!(forced(Fate::ReplyLost).await, (true, 2));
}

#[tokio::test(start_paused = true)]
async fn incomplete_forced_release_is_repeated() {
    assert_eq!(forced(Fate::Incomplete).await, (true, 2));
}

/// A status asks for the label after the answer about the lock, and perhaps another server.
#[tokio::test(start_paused = true)]
async fn a_label_is_waited_for_hardly_longer_than_the_lock() {
    let store = MemoryStore::new();
    let (others, _) = client(&store, &[]);
    let _guard = others.lock("a").acquire().await.unwrap();
    let (locks, seen) = client(&store, &[]);
    for (lock_ms, label_ms, waited_ms) in [
        (0, 0, Some(0)),
        (0, 49, Some(49)),
        (0, 2000, None),
        (300, 310, Some(310)),
        (300, 2000, None),
        (5000, 2000, Some(2000)),
    ] {
        let (lock, label) = (Duration::from_millis(lock_ms), Duration::from_millis(label_ms));
        seen.answer_after(lock, label);
        let began = Instant::now();
        let holder = locks.lock("a").status().await.unwrap().holder.unwrap();
        let waited = began.elapsed() - lock;
        assert_eq!(holder.label.is_some(), waited_ms.is_some(), "{lock:?} {label:?}");
        let expected = Duration::from_millis(waited_ms.unwrap_or(lock_ms + 50));
        let late = waited.saturating_sub(expected);
        assert!(
            waited >= expected && late < Duration::from_millis(3),
            "{waited:?}"
        );
    }
}
