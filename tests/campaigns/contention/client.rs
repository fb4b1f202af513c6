//! A client process: its tasks take locks in all possible ways, hold them for a while, and use the protected
//! resource.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlock::{Error, Lock, LockGuard, LockManager};
use fairlock_testkit::resource::Resource;
use fairlock_testkit::{Process, now_ns, role};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::record::{End, Entry, Queue, Record};
use super::{Load, lock_name};

/// On a busy machine, a server or a client that is well may stand still for so long.
const SOON: Duration = Duration::from_secs(1);
/// A lease that expires while its holder goes on without checking.
const BLIND_LEASE: Duration = Duration::from_millis(300);
/// How many turns a tenure has.
const TURNS: u32 = 16;
/// A process that should run every few milliseconds counts as disturbed if it runs only this much later.
pub(crate) const LATE: Duration = Duration::from_millis(50);
/// The longest time that the tasks of a closed client take to end.
const TASKS_END: Duration = Duration::from_secs(5);

/// How long a client at rest may take until the servers have confirmed everything.
const CONFIRMED: Duration = Duration::from_secs(10);

/// Starts a client process. On `stop` it finishes its work, and answers `idle <held> <waiting> <unconfirmed>`
/// when all its tasks have ended, and then how many votes it `<raised> <yielded> <repaired>`. On `close` it
/// closes its client, answers `closed` or what was left, and then answers `tasks <n>`: the number of tasks
/// that the client left behind.
pub(crate) fn start(load: &Load, urls: &[String], resource_port: u16, seed: u64, record: &str) -> Process {
    let lease = load.lease.as_millis();
    let args = [
        ("urls", urls.join(" ")),
        ("locks", load.locks.to_string()),
        ("tasks", load.tasks.to_string()),
        ("local", load.local.to_string()),
        ("lease", lease.to_string()),
        ("server-timeout", load.server_timeout.as_millis().to_string()),
        ("resource", resource_port.to_string()),
        ("seed", seed.to_string()),
        ("record", record.to_owned()),
    ];
    let args: Vec<_> = args.iter().map(|(key, value)| (*key, value.as_str())).collect();
    Process::spawn("contention::client::client_part", &args)
}

// With one thread, the tasks record their requests in the order of the first polls.
#[tokio::test]
#[ignore = "a role for other tests, run in its own process"]
async fn client_part() {
    let Some(mut role) = role() else { return };
    let corrections = Corrections::begin();
    let record = Arc::new(Record::create(&role.arg("record")));
    let began = now_ns();
    let number = |key| usize::try_from(role.number(key)).unwrap();
    let port = u16::try_from(role.number("resource")).unwrap();
    let load = Load {
        locks: number("locks"),
        tasks: number("tasks"),
        local: number("local"),
        lease: Duration::from_millis(role.number("lease")),
        server_timeout: Duration::from_millis(role.number("server-timeout")),
    };
    let urls: Vec<_> = role.arg("urls").split(' ').map(str::to_owned).collect();
    let locks = loop {
        // The process may start during a fault.
        if let Ok(locks) = load.connect(&urls).await {
            break locks;
        }
    };
    // The client is unreachable before its subscriptions are up.
    record.disturbed(began);
    let stopped = Arc::new(AtomicBool::new(false));
    // Each task with a connection of its own would be too many for one process.
    let mut resources = Vec::new();
    for _ in 0..load.locks {
        resources.push(Arc::new(Mutex::new(Resource::connect(port).await)));
    }
    let mut tasks = JoinSet::new();
    for task in 0..load.tasks * load.locks {
        let (number, nth) = (task % load.locks, task / load.locks);
        let lock = locks.lock(lock_name(number));
        let queue = match load.is_local(number) && nth % 2 == 0 {
            true => Queue::Local,
            false => Queue::Server,
        };
        let mut worker = Worker {
            number,
            lock: match queue {
                Queue::Local => lock.local_handoffs(TURNS),
                Queue::Server => lock,
            },
            queue,
            resource: Arc::clone(&resources[number]),
            record: Arc::clone(&record),
            stopped: Arc::clone(&stopped),
            rng: SmallRng::seed_from_u64(role.number("seed") ^ (task as u64) << 32),
        };
        tasks.spawn(async move { worker.work().await });
    }
    let beat = tokio::spawn(beat(Arc::clone(&record)));
    assert_eq!(role.heard().await, "stop");
    stopped.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.expect("a task that does not panic");
    }
    let confirmed = async {
        while locks.stats().unconfirmed > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = timeout(CONFIRMED, confirmed).await;
    let stats = locks.stats();
    role.say(&format!(
        "idle {} {} {}",
        stats.held, stats.waiting, stats.unconfirmed
    ));
    role.say(&corrections.said());

    assert_eq!(role.heard().await, "close");
    beat.abort();
    role.say(&close(locks).await);
    role.say(&format!("tasks {}", tasks_left().await));
}

/// What this process does to votes, from the metrics. Without these, it counts as nothing.
struct Corrections {
    #[cfg(feature = "metrics")]
    recorder: metrics_exporter_prometheus::PrometheusHandle,
}

impl Corrections {
    /// Before the first lock is used.
    fn begin() -> Corrections {
        Corrections {
            #[cfg(feature = "metrics")]
            recorder: metrics_exporter_prometheus::PrometheusBuilder::new()
                .install_recorder()
                .unwrap(),
        }
    }

    fn said(&self) -> String {
        #[cfg(feature = "metrics")]
        let scraped = self.recorder.render();
        #[cfg(not(feature = "metrics"))]
        let scraped = String::new();
        let of = |correction| {
            let labels = [("correction", correction)];
            fairlock_testkit::sum_of(&scraped, "fairlock_votes_corrected_total", &labels)
        };
        format!("{} {} {}", of("raised"), of("yielded"), of("repaired"))
    }
}

async fn close(locks: LockManager) -> String {
    match locks.close().await {
        Ok(()) => "closed".to_owned(),
        Err(left) => left.to_string(),
    }
}

/// Counts the tasks that this runtime still has, after some time for them to end.
async fn tasks_left() -> usize {
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let none = async {
        while alive() > 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = timeout(TASKS_END, none).await;
    alive()
}

/// Notes when this process does not run.
async fn beat(record: Arc<Record>) {
    loop {
        let before = now_ns();
        sleep(Duration::from_millis(10)).await;
        if Duration::from_nanos(now_ns() - before) > LATE {
            record.disturbed(before);
        }
    }
}

/// How an error that faults explain ends a wait.
fn end_of(error: &Error) -> End {
    match error {
        Error::Unavailable(_) => End::Unavailable,
        Error::NoQuorum { .. } => End::NoQuorum,
        error => panic!("an error that no fault explains: {error:?}"),
    }
}

/// One task, which takes one lock again and again.
struct Worker {
    number: usize,
    lock: Lock,
    queue: Queue,
    resource: Arc<Mutex<Resource>>,
    record: Arc<Record>,
    stopped: Arc<AtomicBool>,
    rng: SmallRng,
}

impl Worker {
    async fn work(&mut self) {
        let record = Arc::clone(&self.record);
        while !self.stopped.load(Ordering::Relaxed) {
            // Half of the locks change hands as fast as possible. The others are held for longer.
            let is_slow = self.number % 2 == 1;
            if is_slow && self.rng.random_ratio(1, 50) {
                // A fixed lease is for one guard alone.
                self.blind_turn(record.asks(self.number, Queue::Server)).await;
                continue;
            }
            let mut entry = record.asks(self.number, self.queue);
            let acquired = self.acquire().await;
            match acquired {
                Ok(guard) => {
                    let held = self.hold(&mut entry, &guard, is_slow).await;
                    entry.over(if held { End::Released } else { End::Lost });
                    if self.rng.random_ratio(1, 5) {
                        drop(guard);
                    } else {
                        // The lease was checked before. An error is possible all the same, because faults can
                        // hit the server at any time.
                        let _ = guard.release().await;
                    }
                }
                Err(end) => {
                    entry.over(end);
                    sleep(self.millis(0, 5)).await;
                }
            }
        }
    }

    /// Takes the lock in one of the possible ways.
    async fn acquire(&mut self) -> Result<LockGuard, End> {
        let patience = self.millis(0, 300);
        let result = match self.rng.random_range(0..10) {
            0 => match self.lock.try_acquire().await {
                Err(Error::Busy { .. }) => Ok(None),
                result => result.map(Some),
            },
            1 => match self.lock.acquire_timeout(patience).await {
                Err(Error::Timeout { .. }) => Ok(None),
                // Nothing was answered within the bound. That is no outage that lasts.
                Err(Error::Unavailable(_) | Error::NoQuorum { .. }) if patience < SOON => Ok(None),
                result => result.map(Some),
            },
            2 => match timeout(patience, self.lock.acquire()).await {
                Err(_) => Ok(None),
                Ok(result) => result.map(Some),
            },
            _ => self.lock.acquire().await.map(Some),
        };
        match result {
            Ok(guard) => guard.ok_or(End::GivenUp),
            Err(error) => Err(end_of(&error)),
        }
    }

    /// Holds the lock for a while, in steps, and stops when the guard reports the loss of the lease. Returns
    /// whether the lease was kept.
    async fn hold(&mut self, entry: &mut Entry<'_>, guard: &LockGuard, is_slow: bool) -> bool {
        if !entry.checks(guard) {
            return false;
        }
        let uses_it = self.rng.random_ratio(1, 3);
        let read = if uses_it {
            self.resource
                .lock()
                .await
                .read(self.number, guard.fence().get())
                .await
        } else {
            None
        };
        let mut left = self.length(is_slow);
        while !left.is_zero() {
            let step = left.min(Duration::from_millis(20));
            sleep(step).await;
            left -= step;
            if !entry.checks(guard) {
                return false;
            }
        }
        if let Some(number) = read {
            self.resource
                .lock()
                .await
                .write(self.number, guard.fence().get(), number + 1)
                .await;
        }
        entry.checks(guard)
    }

    /// Holds the lock for longer than its lease, and writes without checking.
    async fn blind_turn(&mut self, mut entry: Entry<'_>) {
        let began = now_ns();
        let acquired = self
            .lock
            .clone()
            .lease(BLIND_LEASE)
            .auto_renew(false)
            .acquire()
            .await;
        let guard = match acquired {
            Ok(guard) => guard,
            Err(error) => return entry.over(end_of(&error)),
        };
        entry.checks(&guard);
        let fence = guard.fence().get();
        let read = self.resource.lock().await.read(self.number, fence).await;
        sleep(BLIND_LEASE + self.millis(0, 400)).await;
        if let Some(number) = read {
            self.resource
                .lock()
                .await
                .write(self.number, fence, number + 1)
                .await;
        }
        entry.over(End::Lost);
        drop(guard);
        // A client with an expired lease counts as dead for a moment.
        self.record.disturbed(began);
    }

    fn length(&mut self, is_slow: bool) -> Duration {
        let ms = match self.rng.random_range(0..100) {
            _ if !is_slow => self.rng.random_range(0..3),
            0..70 => self.rng.random_range(0..5),
            70..93 => self.rng.random_range(5..30),
            93..99 => self.rng.random_range(30..300),
            // This is long enough to need renewals.
            _ => self.rng.random_range(1_000..3_000),
        };
        Duration::from_millis(ms)
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.random_range(from..to))
    }
}
