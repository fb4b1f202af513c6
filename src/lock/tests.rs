//! The result of a forced release that takes more than one call.

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
