//! What users and operators see of a quorum: status, forced releases, lists, counters, and what it costs the
//! servers.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fairlock::{Error, HoldEnd, LockManager, Quorum};
use fairlock_testkit::{Server, eventually};
use futures_util::TryStreamExt;
use tokio::time::{sleep, timeout};

use super::{AT_ONCE, LIMIT, client, queued_everywhere, servers, urls};

#[tokio::test(flavor = "multi_thread")]
async fn order_of_the_urls_does_not_matter() {
    let servers = servers::<3>().await;
    let here = client(&servers).await;
    let mut urls = urls(&servers);
    urls.reverse();
    let there = LockManager::builder()
        .connect_quorum(Quorum::of(urls).durable())
        .await
        .unwrap();
    let guard = here.lock("a").acquire().await.unwrap();
    assert!(matches!(
        there.lock("a").try_acquire().await,
        Err(Error::Busy { .. })
    ));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_sees_and_ends_a_hold_while_a_server_is_down() {
    let servers = servers::<3>().await;
    let (here, there) = (client(&servers).await, client(&servers).await);
    servers[0].kill();
    let guard = here.lock("a").acquire().await.unwrap();
    let waiter = tokio::spawn(there.lock("a").acquire());
    eventually("queued", LIMIT, async || {
        there.lock("a").status().await.unwrap().waiting == 1
    })
    .await;
    let holder = there.lock("a").status().await.unwrap().holder.unwrap();
    assert_eq!((&holder.owner, holder.fence), (guard.owner(), guard.fence()));

    let listed: Vec<_> = there.list("*").try_collect().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].name.as_str(), listed[0].status.waiting), ("a", 1));

    assert!(there.lock("a").force_release(guard.fence()).await.unwrap());
    let next = timeout(LIMIT, waiter).await.expect("served").unwrap().unwrap();
    assert!(next.fence() > guard.fence());
    let lost = timeout(LIMIT, guard.lost()).await.expect("told");
    assert_eq!(lost, HoldEnd::Taken);
    assert!(!there.lock("a").force_release(guard.fence()).await.unwrap());
    next.check().unwrap();
    next.release().await.unwrap();
}

/// Race: The server that has the label of a holder hangs, while the server of the lock answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_label_that_no_answering_server_knows_holds_up_no_status() {
    let servers = servers::<3>().await;
    let (here, there) = (client(&servers).await, client(&servers).await);
    let guard = here.lock("a").acquire().await.unwrap();
    for server in &servers[1..] {
        let labels = async || server.keys("fairlock:label:").await;
        eventually("both are labelled", LIMIT, async || labels().await.len() == 2).await;
        for label in labels().await {
            server.command(&["DEL", &label]).await;
        }
    }
    servers[0].pause();
    let asked = Instant::now();
    let holder = there.lock("a").status().await.unwrap().holder.unwrap();
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    assert_eq!((holder.fence, holder.label), (guard.fence(), None));
    servers[0].resume();
}

/// A fence is the latest of the servers' times, and a ticket their median.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn status_tells_times_right_though_the_clocks_of_the_servers_differ() {
    let servers = [
        Server::builder().clock(-3600).start().await,
        Server::builder().clock(0).start().await,
        Server::builder().clock(3600).start().await,
    ];
    let (here, there) = (client(&servers).await, client(&servers).await);
    // A server that has not answered a client yet counts for nothing there. Without one of the servers, each
    // client hears the others.
    for away in [&servers[0], &servers[1]] {
        away.pause();
        for locks in [&here, &there] {
            locks.lock("b").acquire().await.unwrap().release().await.unwrap();
        }
        away.resume();
    }
    let asks = Instant::now();
    let _guard = here.lock("a").acquire().await.unwrap();
    let granted = Instant::now();
    let waiter = tokio::spawn(there.lock("a").acquire());
    eventually("queued", LIMIT, async || {
        there.lock("a").status().await.unwrap().waiting == 1
    })
    .await;
    // Other servers answer first each time.
    for _ in 0..20 {
        sleep(Duration::from_millis(100)).await;
        let least = granted.elapsed();
        let status = there.lock("a").status().await.unwrap();
        let most = asks.elapsed() + Duration::from_secs(1);
        let held_for = status.holder.unwrap().held_for;
        assert!(
            held_for + Duration::from_secs(1) > least && held_for < most,
            "{held_for:?}"
        );
        // Those that answered may not have queued the waiter yet.
        let waited = status.longest_wait.unwrap_or_default();
        assert!(waited < most, "{waited:?}");
    }
    waiter.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn list_finds_every_lock_of_a_majority_once() {
    let servers = servers::<3>().await;
    let locks = client(&servers).await;
    let mut guards = Vec::new();
    let mut names = BTreeSet::new();
    for n in 0..20 {
        let name = format!("job:{n}");
        guards.push(locks.lock(&name).acquire().await.unwrap());
        names.insert(name);
    }
    servers[2].kill();
    let listed: Vec<_> = locks.list("job:*").try_collect().await.unwrap();
    assert_eq!(listed.len(), names.len());
    assert_eq!(
        listed.into_iter().map(|lock| lock.name).collect::<BTreeSet<_>>(),
        names
    );
    servers[1].kill();
    let listed: Result<Vec<_>, _> = locks.list("*").try_collect().await;
    assert!(matches!(listed, Err(Error::NoQuorum { .. })), "{listed:?}");
}

/// How often each server ran a script and sent a message.
async fn spent(servers: &[Server]) -> Vec<(u64, u64)> {
    let mut spent = Vec::new();
    for server in servers {
        let calls = server.calls().await;
        let of = |name| calls.get(name).copied().unwrap_or(0);
        spent.push((of("evalsha"), of("publish")));
    }
    spent
}

/// On a slow machine a hold may last for long enough to be renewed, and a waiter may miss its turn at a
/// server, and ask again there. So the usual hand-over counts.
#[tokio::test(flavor = "multi_thread")]
async fn undisturbed_hand_over_takes_two_calls_and_one_message_of_each_server() {
    const HAND_OVERS: u64 = 40;
    let servers = servers::<3>().await;
    let locks = [client(&servers).await, client(&servers).await];
    let mut guard = locks[0].lock("a").acquire().await.unwrap();
    let mut spendings = Vec::new();
    for n in 0..=HAND_OVERS {
        let waiter = tokio::spawn(locks[usize::from(n % 2 == 0)].lock("a").acquire());
        queued_everywhere(&servers, 1).await;
        // Both clients are subscribed from the second hand-over on, at all servers.
        if n >= 1 {
            spendings.push(spent(&servers).await);
        }
        guard.release().await.unwrap();
        guard = waiter.await.unwrap().unwrap();
    }
    for server in 0..servers.len() {
        let calls = usual_step(spendings.iter().map(|spent| spent[server].0));
        let messages = usual_step(spendings.iter().map(|spent| spent[server].1));
        assert_eq!((calls, messages), (2, 1), "server {server}");
    }
    // A vote that is raised or given up costs some server a call more.
    let calls = |spent: &Vec<(u64, u64)>| spent.iter().map(|(calls, _)| calls).sum();
    assert_eq!(usual_step(spendings.iter().map(calls)), 2 * servers.len() as u64);
    assert_eq!(
        locks[0].stats().acquired + locks[1].stats().acquired,
        HAND_OVERS + 2
    );
    guard.release().await.unwrap();
}

/// The median of the steps of a counter.
fn usual_step(counts: impl Iterator<Item = u64>) -> u64 {
    let counts: Vec<u64> = counts.collect();
    let mut steps: Vec<u64> = counts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    steps.sort_unstable();
    steps[steps.len() / 2]
}
