//! The cost of an uncontended lock, in memory and on a server that this program starts. `benches/README.md`
//! says how to run it and how to read it.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use fairlock::{Lock, LockManager, Quorum};
use fairlock_benches::bare::Bare;
use fairlock_benches::quantile::quantile;
use fairlock_benches::{NO_SERVER, Outcome, delay, exit_code, is_called_by_cargo_bench};
use fairlock_testkit::Server;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// The number of tasks in the benches of many tasks, each with a lock of its own.
const TASKS: u64 = 64;

/// The ratio is the median of this number of rounds. Each round is a block of pairs of both kinds.
const ROUNDS: usize = 60;
const PAIRS: u32 = 200;

/// The same for what takes longer, or matters less.
const FEW_ROUNDS: usize = 20;
const FEW_PAIRS: u32 = 20;

/// The delay of that network in each direction.
const DELAY: Duration = Duration::from_micros(500);

/// The limit of the ratio: an acquire and a release are two scripts, and should cost hardly more.
const BAR: f64 = 1.15;

/// The limit of an acquire and a drop, relative to an acquire and a release: only the acquire is waited for.
const DROP_BAR: f64 = 1.0 / 1.4;

/// The limit of the same, relative to rslock, whose lock is one key.
const RSLOCK_BAR: f64 = 1.0 / 0.95;

/// The limit of an acquire and a release of a lock that its client retains, relative to rslock: it takes no
/// call.
const RETAINED_BAR: f64 = 1.0 / 20.0;
const RETAIN: Duration = Duration::from_millis(20);

/// The limit of a manager with a thread of its own, relative to one without: each reply wakes one more
/// thread.
const OWN_THREAD_BAR: f64 = 1.5;

/// The limit for a quorum, relative to one server. It asks all servers at once.
const QUORUM_BAR: f64 = 1.3;

fn main() -> ExitCode {
    if !is_called_by_cargo_bench("uncontended") {
        return ExitCode::SUCCESS;
    }
    exit_code("uncontended", run())
}

fn run() -> Outcome<()> {
    let runtime = Runtime::new()?;
    if !Server::is_installed() {
        return Err(NO_SERVER.into());
    }
    let server = runtime.block_on(Server::start());
    let memory = runtime.block_on(async { LockManager::in_memory() });
    let redis = runtime.block_on(LockManager::connect(&server.url()))?;
    let bare = runtime.block_on(Bare::connect(&server.url()))?;

    // This runs in a task, as for users. A future that `block_on` itself polls is woken across threads for
    // every reply.
    let (lock, script) = (Pair::Lock(redis.lock("ratio")), Pair::Bare(bare.clone()));
    let block = (ROUNDS, PAIRS);
    runtime.block_on(runtime.spawn(ratio(
        ["acquire and release", "two bare EVALSHA"],
        [lock, script],
        block,
        BAR,
    )))??;
    runtime.block_on(runtime.spawn(ways(server.url())))??;
    runtime.block_on(runtime.spawn(quorum()))??;

    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_secs(1))
        .measurement_time(Duration::from_secs(4))
        .configure_from_args();
    locks(&mut criterion, "memory", &runtime, &memory)?;
    locks(&mut criterion, "server", &runtime, &redis)?;
    let mut group = criterion.benchmark_group("server");
    group.bench_function("two bare evalsha", |b| {
        b.to_async(&runtime).iter(|| async { bare.pair().await.ok() })
    });
    group.finish();
    criterion.final_summary();
    Ok(())
}

/// The same benches for either kind of store.
fn locks(criterion: &mut Criterion, kind: &str, runtime: &Runtime, locks: &LockManager) -> Outcome<()> {
    let mut group = criterion.benchmark_group(kind);
    // One pair outside of the measurement shows any error. Inside of it, errors are only kept from being
    // optimized away.
    runtime.block_on(pair(&locks.lock("check")))?;

    let one = locks.lock("one");
    group.bench_function("acquire and release", |b| {
        b.to_async(runtime).iter(|| async { pair(&one).await.ok() })
    });

    let held = locks.lock("held");
    let guard = runtime.block_on(held.acquire())?;
    group.bench_function("try_acquire, held", |b| {
        b.to_async(runtime)
            .iter(|| async { black_box(held.try_acquire().await).is_ok() })
    });
    runtime.block_on(guard.release())?;

    group.throughput(Throughput::Elements(TASKS));
    group.bench_function(format!("acquire and release, {TASKS} tasks"), |b| {
        b.to_async(runtime)
            .iter_custom(|iterations| many(locks, iterations));
    });
    group.finish();
    Ok(())
}

async fn pair(lock: &Lock) -> fairlock::Result<()> {
    lock.acquire().await?.release().await
}

/// Every task makes this number of pairs on a lock of its own.
async fn many(locks: &LockManager, iterations: u64) -> Duration {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let lock = locks.lock(format!("many:{task}"));
        tasks.spawn(async move {
            for _ in 0..iterations {
                black_box(pair(&lock).await.ok());
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    started.elapsed()
}

/// A pair of calls, one after the other.
enum Pair {
    /// An acquire and a release.
    Lock(Lock),
    /// An acquire, whose guard is dropped.
    Dropped(Lock),
    Rslock(rslock::LockManager),
    /// Two scripts that do nothing.
    Bare(Bare),
}

impl Pair {
    /// The time of this number of pairs.
    async fn block(&self, pairs: u32) -> Outcome<Duration> {
        let started = Instant::now();
        for _ in 0..pairs {
            match self {
                Pair::Lock(lock) => pair(lock).await?,
                Pair::Dropped(lock) => drop(lock.acquire().await?),
                Pair::Rslock(locks) => {
                    let lock = locks.lock(b"rslock", Duration::from_secs(30)).await;
                    locks
                        .unlock(&lock.map_err(|error| format!("rslock: {error:?}"))?)
                        .await;
                }
                Pair::Bare(bare) => bare.pair().await?,
            }
        }
        Ok(started.elapsed())
    }
}

/// Compares the ways to take and to free a lock.
async fn ways(url: String) -> Outcome<()> {
    let block = (FEW_ROUNDS, PAIRS);
    let locks = LockManager::connect(&url).await?;
    let own_thread = LockManager::builder().own_thread().connect(&url).await?;
    let dropped = || Pair::Dropped(locks.lock("dropped"));
    let names = ["acquire and drop", "acquire and release"];
    ratio(
        names,
        [dropped(), Pair::Lock(locks.lock("released"))],
        block,
        DROP_BAR,
    )
    .await?;
    let rslock = Pair::Rslock(rslock::LockManager::new(vec![url.as_str()]));
    ratio(
        ["acquire and drop", "rslock, lock and unlock"],
        [dropped(), rslock],
        block,
        RSLOCK_BAR,
    )
    .await?;
    let rslock = Pair::Rslock(rslock::LockManager::new(vec![url.as_str()]));
    let retained = Pair::Lock(locks.lock("retained").retain(RETAIN));
    ratio(
        [
            "acquire and release of a retained lock",
            "rslock, lock and unlock",
        ],
        [retained, rslock],
        block,
        RETAINED_BAR,
    )
    .await?;
    let stats = locks.stats();
    println!(
        "of {} acquires, {} waited for the holder before",
        stats.acquired, stats.handed_over
    );
    let pairs = [
        Pair::Lock(own_thread.lock("own")),
        Pair::Lock(locks.lock("shared")),
    ];
    ratio(
        ["acquire and release, own thread", "without"],
        pairs,
        block,
        OWN_THREAD_BAR,
    )
    .await
}

/// Compares a quorum of three servers with one of them, on the loopback and over a network.
async fn quorum() -> Outcome<()> {
    let servers = [
        Server::start().await,
        Server::start().await,
        Server::start().await,
    ];
    let near = servers.each_ref().map(Server::url);
    compare_quorum(&near, "", (ROUNDS, PAIRS)).await?;
    let mut far = Vec::new();
    for server in &servers {
        let proxy = delay::start(&format!("127.0.0.1:{}", server.port()), DELAY)?;
        far.push(format!("redis://{proxy}"));
    }
    let network = format!(", {} µs further each way", DELAY.as_micros());
    compare_quorum(&far, &network, (FEW_ROUNDS, FEW_PAIRS)).await
}

async fn compare_quorum(urls: &[String], network: &str, block: (usize, u32)) -> Outcome<()> {
    // New servers grant nothing in their first minute, unless they count as durable.
    let quorum = LockManager::builder()
        .connect_quorum(Quorum::of(urls).durable())
        .await?;
    let one = LockManager::connect(&urls[0]).await?;
    let pairs = [Pair::Lock(quorum.lock("quorum")), Pair::Lock(one.lock("one"))];
    let of_three = format!("acquire and release in a quorum of three{network}");
    ratio([&of_three, "on one server"], pairs, block, QUORUM_BAR).await
}

/// Compares two kinds of pairs in alternating blocks, so that the machine's other work affects both. `rounds`
/// and `pairs` are the numbers of blocks and of pairs in each.
async fn ratio(names: [&str; 2], kinds: [Pair; 2], (rounds, pairs): (usize, u32), bar: f64) -> Outcome<()> {
    let (mut ratios, mut times) = (Vec::new(), [Vec::new(), Vec::new()]);
    // The first round only warms up.
    for round in 0..=rounds {
        let mut took = [Duration::ZERO; 2];
        for turn in 0..2 {
            let kind = (round + turn) % 2;
            took[kind] = kinds[kind].block(pairs).await?;
        }
        if round > 0 {
            ratios.push(took[0].as_secs_f64() / took[1].as_secs_f64());
            for (times, took) in times.iter_mut().zip(took) {
                times.push(took.as_secs_f64() * 1e6 / f64::from(pairs));
            }
        }
    }
    let ratio = quantile(&mut ratios, 0.5);
    let [first, second] = times.each_mut().map(|times| quantile(times, 0.5));
    println!(
        "{}: {first:.1} µs; {}: {second:.1} µs; ratio {ratio:.3} (bar {bar:.3}: {})",
        names[0],
        names[1],
        if ratio <= bar { "met" } else { "not met" },
    );
    Ok(())
}
