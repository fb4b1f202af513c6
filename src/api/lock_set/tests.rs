//! Tests of what a set does with each of its locks, on a server whose answers a test decides.

use std::time::Duration;

use tokio::time::Instant;

use crate::tests::scripted_store;
use crate::tests::scripted_store::Fate;
use crate::{Error, MemoryStore};

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_has_waited_for_the_other_locks() {
    let store = MemoryStore::new();
    // The answer to the first release, that of "a".
    let (here, _) = scripted_store::client(&store, &[Fate::AnsweredLate]);
    let (there, _) = scripted_store::client(&store, &[]);
    let guard = here.all(["a", "b", "c"]).acquire().await.unwrap();
    let fence = guard.fences()[1];
    assert!(there.lock("b").force_release(fence).await.unwrap());
    let began = Instant::now();
    let released = guard.release().await;
    assert!(
        matches!(&released, Err(Error::Lost(lost)) if &*lost.name == "b"),
        "{released:?}"
    );
    assert!(began.elapsed() >= Duration::from_secs(1), "its answer comes late");
}
