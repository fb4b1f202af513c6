//! How long callers that never give up wait among those that do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use fairlock::{Lock, LockManager, Quorum};
use fairlock_benches::Outcome;
use fairlock_benches::quantile::quantile;
use fairlock_testkit::Server;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Where the lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Topology {
    Memory,
    Server,
    Quorum,
}

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["memory", "server", "quorum"])]
    topologies: Vec<Topology>,
    /// Callers that give up, and come again
    #[arg(long, default_value_t = 200)]
    impatient: usize,
    /// Callers that do not
    #[arg(long, default_value_t = 6)]
    patient: usize,
    /// Seconds for which the lock is held once, before callers with a patience of 100 ms are served
    #[arg(long, default_value_t = 20)]
    hold: u64,
    /// Seconds of each run
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// What becomes of the callers of one lock.
struct Run {
    locks: LockManager,
    work: Duration,
    is_over: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    impatient: JoinSet<()>,
}

impl Run {
    fn start(locks: &LockManager, work: Duration, patience: impl IntoIterator<Item = Duration>) -> Run {
        let mut run = Run {
            locks: locks.clone(),
            work,
            is_over: Arc::default(),
            served: Arc::default(),
            impatient: JoinSet::new(),
        };
        for patience in patience {
            let (lock, is_over, served) = (run.lock(), Arc::clone(&run.is_over), Arc::clone(&run.served));
            run.impatient.spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok(Ok(guard)) = timeout(patience, lock.acquire()).await {
                        served.fetch_add(1, Ordering::Relaxed);
                        sleep_shortly(work).await;
                        drop(guard);
                    }
                }
            });
        }
        run
    }

    fn lock(&self) -> Lock {
        self.locks.lock("overload")
    }

    /// How long each of these callers waits, in ms, for as long as they come.
    async fn waits(&self, patient: usize, seconds: u64) -> Outcome<Vec<f64>> {
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut callers = JoinSet::new();
        for _ in 0..patient {
            let (lock, work) = (self.lock(), self.work);
            callers.spawn(async move {
                let mut waits = Vec::new();
                while Instant::now() < end {
                    let asked = Instant::now();
                    let guard = lock.acquire().await?;
                    waits.push(asked.elapsed().as_secs_f64() * 1000.0);
                    sleep_shortly(work).await;
                    drop(guard);
                    sleep(Duration::from_millis(20)).await;
                }
                Outcome::Ok(waits)
            });
        }
        let mut waits = Vec::new();
        while let Some(caller) = callers.join_next().await {
            waits.extend(caller??);
        }
        Ok(waits)
    }

    async fn end(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        while self.impatient.join_next().await.is_some() {}
    }
}

/// Timers of the runtime have a resolution of 1 ms.
async fn sleep_shortly(work: Duration) {
    let end = Instant::now() + work;
    if work > Duration::from_millis(2) {
        sleep(work).await;
    }
    while Instant::now() < end {
        tokio::task::yield_now().await;
    }
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome<()> {
    println!(
        "{:>9} {:>12} {:>12} {:>8} {:>11} {:>11} {:>9}",
        "topology", "", "impatient/s", "patient", "median ms", "longest ms", "seconds"
    );
    for topology in &arguments.topologies {
        let (_servers, locks) = connect(*topology).await?;
        // From 0.3 ms to 2.5 s, of which short ones are more frequent.
        let mixed = |task: usize| Duration::from_micros(300 << (task % 14).min(task / 14 % 14));
        let run = Run::start(
            &locks,
            Duration::from_millis(1),
            (0..arguments.impatient).map(mixed),
        );
        measure(*topology, "mixed", &run, arguments).await?;
        run.end().await;

        let (_servers, locks) = connect(*topology).await?;
        let guard = locks.lock("overload").acquire().await?;
        let short = std::iter::repeat_n(Duration::from_millis(100), arguments.impatient);
        let run = Run::start(&locks, Duration::from_millis(5), short);
        sleep(Duration::from_secs(1)).await;
        // Some have the patience to wait for almost as long as the lock is held.
        for _ in 0..3 {
            tokio::spawn(timeout(
                Duration::from_secs(arguments.hold - 1),
                run.lock().acquire(),
            ));
        }
        sleep(Duration::from_secs(arguments.hold)).await;
        guard.release().await?;
        measure(*topology, "after a hold", &run, arguments).await?;
        run.end().await;
    }
    Ok(())
}

async fn measure(topology: Topology, load: &str, run: &Run, arguments: &Arguments) -> Outcome<()> {
    let (began, before) = (Instant::now(), run.served.load(Ordering::Relaxed));
    let mut waits = run.waits(arguments.patient, arguments.seconds).await?;
    let (took, served) = (began.elapsed(), run.served.load(Ordering::Relaxed) - before);
    println!(
        "{:>9} {load:>12} {:>12.0} {:>8} {:>11.0} {:>11.0} {:>9.1}",
        topology
            .to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default(),
        served as f64 / took.as_secs_f64(),
        waits.len(),
        quantile(&mut waits, 0.5),
        quantile(&mut waits, 1.0),
        took.as_secs_f64()
    );
    Ok(())
}

async fn connect(topology: Topology) -> Outcome<(Vec<Server>, LockManager)> {
    let mut servers = Vec::new();
    for _ in 0..match topology {
        Topology::Memory => 0,
        Topology::Server => 1,
        Topology::Quorum => 3,
    } {
        servers.push(Server::start().await);
    }
    let locks = match &servers[..] {
        [] => LockManager::in_memory(),
        [server] => LockManager::connect(&server.url()).await?,
        all => {
            let quorum = Quorum::of(all.iter().map(Server::url)).durable();
            LockManager::builder().connect_quorum(quorum).await?
        }
    };
    Ok((servers, locks))
}
