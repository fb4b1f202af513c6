//! A client in a process of its own, which follows the commands of the test.

use fairlock::{LockGuard, LockManager, Result};
use fairlock_testkit::{Process, Server, role};
use futures_util::future::BoxFuture;
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

/// A way to acquire a lock of any kind, again and again.
type Acquire = Box<dyn Fn() -> BoxFuture<'static, Result<LockGuard>> + Send + Sync>;

/// The way to acquire this lock.
fn acquire<G, F>(acquire: impl Fn() -> F + Send + Sync + 'static) -> Acquire
where
    G: Into<LockGuard>,
    F: Future<Output = Result<G>> + Send + 'static,
{
    Box::new(move || {
        let acquiring = acquire();
        Box::pin(async move { acquiring.await.map(Into::into) })
    })
}

/// The `lock`, the same `retained`, its `reader` or `writer`, or `<permits>/<capacity>` of a semaphore.
fn of(locks: &LockManager, what: &str) -> Acquire {
    let (lock, rw) = (locks.lock(NAME), locks.rw_lock(NAME));
    match what.split_once('/') {
        Some((permits, capacity)) => {
            let semaphore = locks.semaphore(NAME, capacity.parse().expect("a capacity"));
            let semaphore = semaphore.permits(permits.parse().expect("permits"));
            acquire(move || semaphore.acquire())
        }
        None if what == "retained" => {
            let lock = lock.retain(SECOND / 3);
            acquire(move || lock.acquire())
        }
        None if what == "reader" => acquire(move || rw.read().acquire()),
        None if what == "writer" => acquire(move || rw.write().acquire()),
        None => acquire(move || lock.acquire()),
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

fn wait(acquire: &Acquire, grants: UnboundedSender<LockGuard>) {
    let waiting = acquire();
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
