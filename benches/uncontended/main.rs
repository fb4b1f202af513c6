//! The cost of an uncontended lock, in memory and on a server that this program starts. `benches/README.md`
//! says how to run it and how to read it.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use fairlock::{Lock, LockManager};
use fairlock_benches::bare::Bare;
use fairlock_benches::quantile::quantile;
use fairlock_benches::{NO_SERVER, Outcome, exit_code, is_called_by_cargo_bench};
use fairlock_testkit::Server;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// The number of tasks in the benches of many tasks, each with a lock of its own.
const TASKS: u64 = 64;

/// The ratio is the median of this number of rounds. Each round is a block of pairs of both kinds.
const ROUNDS: usize = 60;
const PAIRS: u32 = 200;

/// The limit of the ratio: an acquire and a release are two scripts, and should cost hardly more.
const BAR: f64 = 1.15;

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
    runtime.block_on(runtime.spawn(ratio(redis.lock("ratio"), bare.clone())))??;

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

/// Compares an acquire and a release with two bare scripts, in alternating blocks, so that the machine's
/// other work affects both.
async fn ratio(lock: Lock, bare: Bare) -> Outcome<()> {
    let (mut ratios, mut lock_us, mut bare_us) = (Vec::new(), Vec::new(), Vec::new());
    // The first round only warms up.
    for round in 0..=ROUNDS {
        let (of_lock, of_bare) = if round % 2 == 0 {
            let of_lock = lock_block(&lock).await?;
            (of_lock, bare_block(&bare).await?)
        } else {
            let of_bare = bare_block(&bare).await?;
            (lock_block(&lock).await?, of_bare)
        };
        if round > 0 {
            ratios.push(of_lock.as_secs_f64() / of_bare.as_secs_f64());
            lock_us.push(of_lock.as_secs_f64() * 1e6 / f64::from(PAIRS));
            bare_us.push(of_bare.as_secs_f64() * 1e6 / f64::from(PAIRS));
        }
    }
    let ratio = quantile(&mut ratios, 0.5);
    println!(
        "acquire and release: {:.1} µs; two bare EVALSHA: {:.1} µs; ratio {ratio:.3} (bar {BAR}: {})",
        quantile(&mut lock_us, 0.5),
        quantile(&mut bare_us, 0.5),
        if ratio <= BAR { "met" } else { "not met" },
    );
    Ok(())
}

async fn lock_block(lock: &Lock) -> Outcome<Duration> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        pair(lock).await?;
    }
    Ok(started.elapsed())
}

async fn bare_block(bare: &Bare) -> Outcome<Duration> {
    let started = Instant::now();
    for _ in 0..PAIRS {
        bare.pair().await?;
    }
    Ok(started.elapsed())
}
