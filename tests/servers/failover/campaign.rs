//! Repeated failovers under clients that contend for a lock, and write to a resource that checks the fence.
//!
//! The test prints how often two clients believed at once that they held the lock, and what the resource did
//! with their writes. `scripts/campaign failover` runs it for longer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairlock::LockManager;
use fairlock_testkit::resource::{Resource, Writes, writes};
use fairlock_testkit::{Sentinels, Server, eventually};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::unreplicated::{self, Unreplicated};

const CLIENTS: u64 = 6;
/// The lease is longer than a failover, so that a holder that the new primary does not know can overlap with
/// the next one.
const LEASE: Duration = Duration::from_secs(6);

/// How long the replicas receive nothing before the kill, in every other round.
const UNREPLICATED: Duration = Duration::from_millis(350);

/// A hold: its fence, and the time from the grant until its release or its noticed loss.
pub(crate) struct Held {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
    pub(crate) fence: u64,
}

#[derive(Clone, Default)]
pub(crate) struct Log {
    /// The holds of the lock that all clients contend for.
    held: Arc<Mutex<Vec<Held>>>,
    /// The holds of the lock whose grants are lost in failovers.
    unreplicated: Arc<Mutex<Vec<Held>>>,
    over: Arc<AtomicBool>,
}

impl Log {
    pub(crate) fn unreplicated(&self, held: Held) {
        self.unreplicated.lock().unwrap().push(held);
    }
}

/// Race: A failover loses the queue, or a part of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stale_write_is_accepted_over_failovers() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let time = Duration::from_secs(number("FAIRLOCK_FAILOVER_SECONDS").unwrap_or(1));
    let seed = number("FAIRLOCK_FAILOVER_SEED").unwrap_or(1);

    let resource = Server::start().await;
    let group = Sentinels::start().await;
    let log = Log::default();
    let connect = async || {
        let builder = LockManager::builder().lease(LEASE);
        let builder = builder.server_timeout(Duration::from_secs(60));
        builder.connect(&group.url()).await.unwrap()
    };
    let access = Resource::connect(resource.port()).await;
    let mut unreplicated = Unreplicated::new(connect().await, connect().await, access);
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let locks = connect().await;
        let access = Resource::connect(resource.port()).await;
        clients.push(tokio::spawn(contend(locks, access, log.clone(), seed + number)));
    }

    let started = Instant::now();
    let mut gaps = Vec::new();
    while gaps.is_empty() || started.elapsed() < time {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let loses_writes = gaps.len() % 2 == 0;
        gaps.push(fail_over(&group, &log, loses_writes.then_some(&mut unreplicated)).await);
    }
    log.over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }

    gaps.sort_unstable();
    println!("failovers                                    {}", gaps.len());
    println!(
        "from the kill to the next grant              {:.1} s, at most {:.1} s",
        gaps[gaps.len() / 2].as_secs_f64(),
        gaps[gaps.len() - 1].as_secs_f64()
    );
    let (contended, lost) = (
        writes(&resource, 0).await,
        writes(&resource, unreplicated::NUMBER).await,
    );
    println!("\nthe contended lock");
    report(&log.held.lock().unwrap(), contended);
    println!("\nthe lock with grants that no replica received");
    report(&log.unreplicated.lock().unwrap(), lost);
    assert_eq!(
        lost.refused, lost.accepted,
        "one stale write for each accepted one"
    );
}

fn report(held: &[Held], writes: Writes) {
    println!("grants                                       {}", held.len());
    println!("holders that overlapped with an earlier one  {}", overlaps(held));
    println!("writes accepted                              {}", writes.accepted);
    println!("stale writes refused                         {}", writes.refused);
    println!(
        "stale writes accepted                        {}",
        writes.accepted - writes.number
    );
    let mut fences: Vec<u64> = held.iter().map(|held| held.fence).collect();
    fences.sort_unstable();
    assert!(
        fences.windows(2).all(|pair| pair[0] < pair[1]),
        "a fence was given twice"
    );
    assert_eq!(writes.number, writes.accepted, "a stale write was accepted");
}

/// Takes the lock again and again and writes the number it read plus one. Most holds are shorter than a third
/// of a second; some last for seconds.
async fn contend(locks: LockManager, mut resource: Resource, log: Log, seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    while !log.over.load(Ordering::Relaxed) {
        let guard = locks.lock("a").acquire().await.unwrap();
        let (from, fence) = (Instant::now(), guard.fence().get());
        if let Some(number) = resource.read(0, fence).await {
            let longest = if random.random_bool(0.2) { 5000 } else { 330 };
            let work = Duration::from_millis(random.random_range(0..longest));
            let _ = tokio::time::timeout(work, guard.lost()).await;
            if !guard.is_lost() {
                resource.write(0, fence, number + 1).await;
            }
        }
        let to = Instant::now();
        // During a failover the release may find nothing.
        let _ = guard.release().await;
        log.held.lock().unwrap().push(Held { from, to, fence });
    }
}

/// Kills the primary, and returns the time until a lock was granted again. Then restarts the killed server as
/// a replica. With `unreplicated`, the primary's last writes, among them a grant, do not reach its replicas.
async fn fail_over(group: &Sentinels, log: &Log, unreplicated: Option<&mut Unreplicated>) -> Duration {
    let former = group.primary().await;
    let mut first_hold = None;
    let mut paused: Vec<&Server> = Vec::new();
    if let Some(unreplicated) = unreplicated {
        paused = group.pause_replicas(former).await;
        let hold = unreplicated.acquire().await;
        first_hold = Some((unreplicated, hold));
        tokio::time::sleep(UNREPLICATED).await;
    }
    let killed = Instant::now();
    group.servers[former].kill();
    paused.iter().for_each(|replica| replica.resume());
    let now = group.switched(former).await;
    let mut granted = None;
    eventually("a lock is granted again", Duration::from_secs(60), async || {
        // A grant from before the kill that is logged late does not count.
        let held = log.held.lock().unwrap();
        let later = held.iter().map(|held| held.from).filter(|from| *from > killed);
        granted = later.min();
        granted.is_some()
    })
    .await;
    if let Some((unreplicated, hold)) = first_hold {
        unreplicated.grant_again(hold, log).await;
    }
    group.servers[former].restart().await;
    group.follow(former, now).await;
    group.settled().await;
    granted.unwrap() - killed
}

/// How many holds began before an earlier one had ended.
fn overlaps(held: &[Held]) -> usize {
    let mut order: Vec<&Held> = held.iter().collect();
    order.sort_unstable_by_key(|held| held.from);
    let mut end = None;
    let mut count = 0;
    for held in order {
        count += usize::from(end.is_some_and(|end| held.from < end));
        end = end.max(Some(held.to));
    }
    count
}
