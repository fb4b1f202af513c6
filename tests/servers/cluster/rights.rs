//! The rights of the user that `docs/operations.md` recommends for a cluster.

use std::time::Duration;

use fairlock::LockManager;
use fairlock_testkit::{Cluster, History};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::scene::{all_served, queue};

const OPERATIONS: &str = include_str!("../../../docs/operations.md");
const OF_SHARDS: [&str; 3] = ["+spublish", "+ssubscribe", "+sunsubscribe"];
const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_advised_user_can_do_everything_in_a_cluster() {
    let cluster = Cluster::start().await;
    // One line for every server, and another for servers of a cluster.
    let advised: Vec<_> = OPERATIONS
        .lines()
        .filter(|line| line.starts_with("ACL SETUSER"))
        .collect();
    assert_eq!(advised.len(), 2);
    for server in &cluster.servers {
        for line in &advised {
            // Servers before 7.0 have no shard channels.
            let sharded = !server.command(&["PUBSUB", "SHARDNUMSUB"]).await.is_error();
            let known = |word: &&str| sharded || !OF_SHARDS.contains(word);
            let words: Vec<&str> = line.split(' ').filter(known).collect();
            server.set_user(&words).await;
        }
    }
    let url = cluster.url().replace("://", "://locks:secret@");
    let mut locks = Vec::new();
    for _ in 0..2 {
        let builder = LockManager::builder().claim_window(SECOND);
        locks.push(builder.connect(&url).await.unwrap().lock("moving"));
    }
    let history = History::default();
    let mut waiters = JoinSet::new();
    let first = locks[0].acquire().await.unwrap();
    queue(&locks, 10, Duration::from_millis(5), &history, &mut waiters).await;
    let slot = cluster.slot("{moving}").await;
    let from = Cluster::first_owner(slot);
    cluster.migrate(slot, from, (from + 1) % 3, SECOND / 2).await;
    // In this time the waitlists poll the new server.
    sleep(2 * SECOND).await;
    first.release().await.unwrap();
    all_served(&mut waiters, 30 * SECOND).await;
    for server in &cluster.servers {
        let denied = server.command(&["ACL", "LOG"]).await;
        assert_eq!(denied.array(), [], "{denied:?}");
    }
}
