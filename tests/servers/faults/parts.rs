//! A client in a process of its own, which follows the commands of the test.

use fairlock::{Lock, LockGuard, LockManager};
use fairlock_testkit::{Process, Server, role};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::scene::{NAME, SECOND, settings};

/// Starts a client, which understands these lines:
/// - `acquire <n>`: waits for the lock `n` times at once, and answers `granted <fence>` at each grant;
/// - `check`: answers whether the lease of the last grant is `held` or `lost`;
/// - `release`: answers `released`, or `lost` if the lease was lost.
pub(crate) fn client(server: &Server, lease_ms: &str, claim_ms: &str) -> Process {
    client_of(server, "lock", lease_ms, claim_ms)
}

/// Starts such a client for what [`of`] understands.
pub(crate) fn client_of(server: &Server, what: &str, lease_ms: &str, claim_ms: &str) -> Process {
    let url = server.url();
    let args = [
        ("url", url.as_str()),
        ("what", what),
        ("lease", lease_ms),
        ("claim", claim_ms),
    ];
    Process::spawn("faults::parts::client_part", &args)
}

/// The `lock`, the same `retained`, its `reader` or `writer`, or `<permits>/<capacity>` of a semaphore.
pub(crate) fn of(locks: &LockManager, what: &str) -> Lock {
    match what.split_once('/') {
        Some((permits, capacity)) => {
            let semaphore = locks.semaphore(NAME, capacity.parse().expect("a capacity"));
            semaphore.permits(permits.parse().expect("permits"))
        }
        None if what == "retained" => locks.lock(NAME).retain(SECOND / 3),
        None if what == "reader" => locks.rw_lock(NAME).read(),
        None if what == "writer" => locks.rw_lock(NAME).write(),
        None => locks.lock(NAME),
    }
}

#[tokio::test]
#[ignore = "a role for other tests, run in its own process"]
async fn client_part() {
    let Some(mut role) = role() else { return };
    let ms = |key| std::time::Duration::from_millis(role.number(key));
    let locks = settings().lease(ms("lease")).claim_window(ms("claim"));
    let locks = locks.connect(&role.arg("url")).await.unwrap();
    let lock = of(&locks, &role.arg("what"));
    let (sender, mut grants) = unbounded_channel();
    let mut guard = None;
    loop {
        tokio::select! {
            granted = grants.recv() => {
                let granted: LockGuard = granted.expect("this task has the sender");
                role.say(&format!("granted {}", granted.fence()));
                guard = Some(granted);
            }
            heard = role.heard() => match heard.split_once(' ') {
                Some(("acquire", count)) => {
                    for _ in 0..count.parse().unwrap() {
                        wait(&lock, sender.clone());
                    }
                }
                _ if heard == "check" => {
                    let guard: &LockGuard = guard.as_ref().expect("a grant");
                    role.say(if guard.is_lost() { "lost" } else { "held" });
                }
                _ if heard == "release" => {
                    let released = guard.take().expect("a grant").release().await;
                    role.say(if released.is_ok() { "released" } else { "lost" });
                }
                _ => panic!("unknown order {heard:?}"),
            }
        }
    }
}

fn wait(lock: &Lock, grants: UnboundedSender<LockGuard>) {
    let waiting = lock.acquire();
    tokio::spawn(async move {
        let _ = grants.send(waiting.await.expect("a guard"));
    });
}

/// The fence of the next grant that the client reports.
pub(crate) async fn fence(part: &mut Process) -> u64 {
    let line = part.line().await;
    let fence = line.strip_prefix("granted ").expect("a grant");
    fence.parse().expect("a fence")
}
