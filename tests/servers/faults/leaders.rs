//! Leaders in processes of their own, which are killed, stopped or cut off, and lead again.

use std::time::Duration;

use fairlock::{HoldToken, Leadership, LockManager, LockStream, Status};
use fairlock_testkit::{Process, Proxy, Server, role};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::scene::{NAME, SECOND, SOON, epoch_ms, queued, settings, subscribed};

const LEASE: Duration = Duration::from_millis(2500);
/// How much longer than the lease a busy machine may take.
const SLACK: Duration = Duration::from_secs(3);

fn leadership(locks: &LockManager) -> Leadership {
    locks.leadership(NAME).lease(LEASE)
}

/// Starts a process that campaigns. It answers `leads <fence> <ms>` when it leads, and `ended <ms>` when its
/// term ends, with the times. It understands `stop`, which shuts it down: then it answers `stopped`.
fn instance(url: &str, label: &str) -> Process {
    Process::spawn(
        "faults::leaders::instance_of_many",
        &[("url", url), ("label", label)],
    )
}

#[tokio::test]
#[ignore = "a role for other tests, run in its own process"]
async fn instance_of_many() {
    let Some(mut role) = role() else { return };
    let settings = settings().claim_window(SECOND).server_timeout(SECOND);
    let locks = settings
        .label(role.arg("label"))
        .connect(&role.arg("url"))
        .await
        .unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let (told, mut tells) = tokio::sync::mpsc::unbounded_channel();
    let work = move |term: HoldToken| {
        told.send(format!("leads {} {}", term.fence(), epoch_ms()))
            .unwrap();
        let told = told.clone();
        // Another task learns of the end by the token.
        let lost = term.lost();
        tokio::spawn(async move {
            lost.await;
            told.send(format!("ended {}", epoch_ms())).unwrap();
        });
        async move {
            // The process may be stopped in the middle of one step.
            let mut late = 0;
            while late < 2 {
                sleep(Duration::from_millis(1)).await;
                late += usize::from(term.check().is_err());
            }
            panic!("the work goes on after its term");
        }
    };
    let mut run = tokio::spawn(leadership(&locks).run_until(stopped, work));
    let mut stop = Some(stop);
    loop {
        tokio::select! {
            Some(line) = tells.recv() => role.say(&line),
            ended = &mut run => {
                let ended: Option<()> = ended.unwrap().expect("no error");
                assert!(ended.is_none());
                role.say("stopped");
                return;
            }
            heard = role.heard() => {
                assert_eq!(heard, "stop");
                drop(stop.take());
            }
        }
    }
}

/// The fence of a new leader, and when it began to lead.
async fn leads(instance: &mut Process, within: Duration) -> (u64, u64) {
    let line = instance.line_within(within).await.expect("it leads in time");
    let told = line.strip_prefix("leads ").unwrap_or_else(|| panic!("{line}"));
    let (fence, ms) = told.split_once(' ').unwrap();
    (fence.parse().unwrap(), ms.parse().unwrap())
}

async fn ended(instance: &mut Process) -> u64 {
    let line = instance.line().await;
    let told = line.strip_prefix("ended ").unwrap_or_else(|| panic!("{line}"));
    told.parse().unwrap()
}

/// A leader, and one that follows. The leader uses its own URL.
async fn two(server: &Server, url: &str) -> (Process, u64, Process) {
    let mut leader = instance(url, "first");
    let (fence, _) = leads(&mut leader, 20 * SECOND).await;
    let follower = instance(&server.url(), "second");
    queued(server, NAME, 1).await;
    subscribed(server, 1).await;
    (leader, fence, follower)
}

type Watch = LockStream<Status>;

async fn told(watch: &mut Watch) -> Option<String> {
    let status = timeout(20 * SECOND, watch.next()).await.expect("a change");
    let status = status.expect("no end").expect("no error");
    status.holder.and_then(|leader| leader.label)
}

/// Race: A leader dies.
#[tokio::test]
async fn a_killed_leader_is_followed_within_its_lease() {
    let server = Server::start().await;
    let locks = settings().connect(&server.url()).await.unwrap();
    let (mut leader, fence, mut follower) = two(&server, &server.url()).await;
    let mut watch = locks.lock(NAME).watch(SECOND / 10);
    assert_eq!(told(&mut watch).await.as_deref(), Some("first"));
    leader.kill();
    let (next, _) = leads(&mut follower, LEASE + SLACK).await;
    assert!(next > fence);
    loop {
        // Between the two it may ask while nobody leads.
        if told(&mut watch).await.as_deref() == Some("second") {
            break;
        }
    }
}

/// Race: A leader is stopped for longer than its lease, and goes on.
#[tokio::test]
async fn a_frozen_leader_is_followed_within_its_lease_and_its_work_stops_when_it_goes_on() {
    let server = Server::start().await;
    let (mut frozen, first, mut follower) = two(&server, &server.url()).await;
    frozen.stop();
    let (second, _) = leads(&mut follower, LEASE + SLACK).await;
    assert!(second > first);
    frozen.cont();
    // It would panic if its work went on.
    ended(&mut frozen).await;
    // It campaigns again, and leads once the other one stops.
    queued(&server, NAME, 1).await;
    follower.tell("stop");
    ended(&mut follower).await;
    let (third, _) = leads(&mut frozen, SOON + SECOND).await;
    assert!(third > second);
    follower.expect("stopped").await;
    follower.ended().await;
}

/// The old leader is told before the new one leads.
async fn cut_off_by(fault: impl FnOnce(&Proxy)) {
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let (mut leader, first, mut follower) = two(&server, &proxy.url()).await;
    // This is long enough for a renewal or two.
    sleep(SECOND).await;
    fault(&proxy);
    let over = ended(&mut leader).await;
    let (second, began) = leads(&mut follower, LEASE + SLACK).await;
    assert!(second > first);
    assert!(over <= began, "two led for {} ms", over - began);

    // Its campaigns fail meanwhile. Afterwards it takes part again.
    sleep(2 * SECOND).await;
    proxy.heal();
    queued(&server, NAME, 1).await;
    follower.tell("stop");
    ended(&mut follower).await;
    let (third, _) = leads(&mut leader, LEASE + SLACK).await;
    assert!(third > second);
}

/// Race: A leader is cut off from the server.
#[tokio::test]
async fn a_leader_in_a_black_hole_is_told_before_another_one_leads() {
    cut_off_by(Proxy::black_hole).await;
}

/// Race: A leader is cut off from the server.
#[tokio::test]
async fn a_leader_behind_a_frozen_network_is_told_before_another_one_leads() {
    cut_off_by(Proxy::freeze).await;
}

#[tokio::test]
async fn a_leader_that_shuts_down_is_followed_at_once() {
    let server = Server::start().await;
    let (mut leader, first, mut follower) = two(&server, &server.url()).await;
    leader.tell("stop");
    let (second, _) = leads(&mut follower, SOON).await;
    assert!(second > first);
    ended(&mut leader).await;
    leader.expect("stopped").await;
    leader.ended().await;
}

/// Race: The server of a leader is away for longer than the lease.
#[tokio::test]
async fn a_leader_comes_back_when_its_server_does() {
    let server = Server::start().await;
    let locks = settings()
        .server_timeout(SECOND / 2)
        .connect(&server.url())
        .await
        .unwrap();
    let mut watch = locks.lock(NAME).watch(SECOND / 10);
    let mut leader = instance(&server.url(), "only");
    let (first, _) = leads(&mut leader, 20 * SECOND).await;
    while told(&mut watch).await.as_deref() != Some("only") {}
    server.kill();
    ended(&mut leader).await;
    // An error does not end the watch.
    let unknown = timeout(20 * SECOND, watch.next()).await.expect("an error");
    assert!(unknown.expect("no end").unwrap_err().is_transient());
    sleep(2 * SECOND).await;
    server.restart().await;
    let (second, _) = leads(&mut leader, LEASE + 3 * SLACK).await;
    assert!(second > first);
    let mut led = async || loop {
        let status = watch.next().await.expect("no end");
        if let Some(leader) = status.ok().and_then(|status| status.holder) {
            return leader.fence.get();
        }
    };
    assert_eq!(timeout(20 * SECOND, led()).await.expect("a change"), second);
}

#[tokio::test]
async fn a_watch_makes_few_calls() {
    const EVERY: Duration = Duration::from_millis(200);
    let server = Server::start().await;
    let proxy = Proxy::start(server.port());
    let others = settings().connect(&server.url()).await.unwrap();
    let _lead = leadership(&others).campaign().await.unwrap();
    let locks = settings().connect(&proxy.url()).await.unwrap();
    let mut watch = locks.lock(NAME).watch(EVERY);
    while told(&mut watch).await.is_none() {}
    let (before, began) = (proxy.commands(), Instant::now());
    assert!(
        timeout(2 * SECOND, watch.next()).await.is_err(),
        "nothing changes"
    );
    let calls = proxy.commands() - before;
    let rounds = u64::try_from(began.elapsed().as_millis() / (EVERY * 3 / 4).as_millis()).unwrap();
    // Two for each round, and the pings of the connections.
    assert!(
        calls >= 4 && calls <= 2 * rounds + 4,
        "{calls} calls in {rounds} rounds"
    );
    // Nothing is asked while nobody waits for a change.
    let before = proxy.commands();
    sleep(SECOND).await;
    assert!(proxy.commands() - before <= 4);
}
