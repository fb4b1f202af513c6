//! A master dies, and its replica takes over.

use std::time::{Duration, Instant};

use fairlock::LockManager;
use fairlock_testkit::{Cluster, History};
use tokio::task::JoinSet;

use super::scene::{all_served, longest_gap, overlaps, overtakings, serve_some};

const SECOND: Duration = Duration::from_secs(1);

/// Race: A failover loses writes that had not reached the replica.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_all_waiters_are_served_under_larger_fences() {
    const WAITERS: usize = 40;

    let cluster = Cluster::start().await;
    let slot = cluster.slot("{orders}").await;
    let master = Cluster::first_owner(slot);
    let mut clients = Vec::new();
    for _ in 0..4 {
        let builder = LockManager::builder().lease(3 * SECOND).claim_window(SECOND);
        clients.push(
            builder
                .server_timeout(30 * SECOND)
                .connect(&cluster.url())
                .await
                .unwrap(),
        );
    }
    let locks: Vec<_> = clients.iter().map(|client| client.lock("orders")).collect();

    let history = History::default();
    let mut waiters = JoinSet::new();
    let served_before = serve_some(&locks, WAITERS, &history, &mut waiters).await;
    let killed = Instant::now();
    cluster.servers[master].kill();
    all_served(&mut waiters, 60 * SECOND).await;

    let grants = history.grants();
    println!(
        "{served_before} served before, {} after; all within {:?} of the kill; longest gap {:?}, {} overtakings, \
         {} overlaps",
        WAITERS - served_before,
        killed.elapsed(),
        longest_gap(&grants),
        overtakings(&grants),
        overlaps(&grants)
    );
    assert!((1..WAITERS).contains(&served_before), "{served_before}");
    assert_eq!(grants.len(), WAITERS, "each waiter is served once");
    history.assert_fences_increase();
    // One overlap is possible, because a grant that never reached the replica may be made again.
    assert!(overlaps(&grants) <= 1, "{} overlaps", overlaps(&grants));
}

/// Race: A dead master holds up the locks of the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_on_with_the_other_masters_while_one_is_gone() {
    let cluster = Cluster::start().await;
    let locks = LockManager::connect(&cluster.url()).await.unwrap();
    let mut names: Vec<Option<String>> = vec![None; 3];
    for n in 0.. {
        let name = format!("lock-{n}");
        let owner = Cluster::first_owner(cluster.slot(&format!("{{{name}}}")).await);
        names[owner].get_or_insert(name);
        if names.iter().all(Option::is_some) {
            break;
        }
    }
    let [gone, _, there] = &names[..] else {
        unreachable!()
    };
    let (gone, there) = (gone.as_deref().unwrap(), there.as_deref().unwrap());
    for name in [gone, there] {
        locks.lock(name).acquire().await.unwrap().release().await.unwrap();
    }
    cluster.servers[0].kill();
    let start = Instant::now();
    let guard = locks.lock(there).acquire().await.unwrap();
    guard.release().await.unwrap();
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    let guard = locks.lock(gone).acquire_timeout(30 * SECOND).await.unwrap();
    println!(
        "{:?} from the kill to a lock on the promoted replica",
        start.elapsed()
    );
    guard.release().await.unwrap();
}
