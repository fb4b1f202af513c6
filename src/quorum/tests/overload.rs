//! Overload: more callers than can be served in time, which give up.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::engine::options::IDLE_LIMIT;

const RUN_TIME: Duration = Duration::from_secs(6);
const TASKS: usize = 200;

/// How a caller gives up.
#[derive(Clone, Copy, Debug)]
enum Way {
    Bound,
    Drop,
}

async fn acquire_or_give_up(queues: &LocalQueues, way: Way, patience: Duration) -> Option<Majority> {
    match way {
        Way::Bound => acquire_through(queues, Some(Instant::now() + patience))
            .await
            .ok(),
        Way::Drop => {
            let acquiring = pin!(acquire_through(queues, None));
            timeout(patience, acquiring).await.ok()?.ok()
        }
    }
}

/// How many grants these tasks get per second, in the second half of a run.
async fn served(way: Way, patience: Duration) -> u64 {
    let servers = Servers::new(3);
    let process = servers.process(1);
    for server in 0..3 {
        process.set(server, State::Works(MS));
    }
    let served = Arc::new(AtomicU64::new(0));
    let end = Instant::now() + RUN_TIME;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (queues, served) = (Arc::clone(&process.queues), Arc::clone(&served));
        tasks.spawn(async move {
            while Instant::now() < end {
                if let Some(held) = acquire_or_give_up(&queues, way, patience).await {
                    if Instant::now() > end - RUN_TIME / 2 {
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                    sleep(MS).await;
                    held.release().await.unwrap();
                }
            }
        });
    }
    tasks.join_all().await;
    sleep(10 * SECOND).await;
    assert_eq!(servers.left().await, 0, "{way:?}");
    assert_eq!(process.quorum.pending(), 0, "{way:?}");
    assert!(process.queues.gate().is_idle(), "{way:?}");
    served.load(Ordering::Relaxed) / (RUN_TIME / 2).as_secs()
}

/// Race: Callers give up before their turn, and their leftovers keep the server from serving others.
#[tokio::test(start_paused = true)]
async fn lock_stays_busy_though_most_callers_give_up() {
    let patient = served(Way::Bound, 60 * SECOND).await;
    for way in [Way::Bound, Way::Drop] {
        let impatient = served(way, 30 * MS).await;
        assert!(
            impatient > patient / 2,
            "{way:?}: {impatient} of {patient} a second"
        );
    }
}

/// A lock that a process has held for long, and another process whose callers gave up.
async fn overloaded(servers: &Servers) -> (Majority, Process) {
    let held = servers.process(1).acquire().await;
    let process = servers.process(2);
    let error = acquire_through(&process.queues, Some(Instant::now() + 4 * SECOND)).await;
    assert!(matches!(error, Err(Error::Timeout { .. })));
    for _ in 0..32 {
        let error = acquire_through(&process.queues, Some(Instant::now() + MS)).await;
        assert!(matches!(error, Err(Error::Timeout { .. })));
    }
    sleep(MS).await;
    assert_eq!(servers.left().await, 3, "the holder's");
    (held, process)
}

const CALLERS: usize = 10;

/// Callers that cannot wait for another four seconds. The number of each comes with its outcome.
async fn callers(process: &Process) -> JoinSet<(usize, crate::Result<Majority>)> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let queues = Arc::clone(&process.queues);
        callers.spawn(async move {
            sleep(u32::try_from(caller).unwrap() * MS).await;
            (
                caller,
                acquire_through(&queues, Some(Instant::now() + 3 * SECOND)).await,
            )
        });
    }
    sleep(SECOND).await;
    callers
}

/// Race: Callers that wait in the client are overtaken by other clients, or hold up others.
#[tokio::test(start_paused = true)]
async fn callers_that_wait_in_the_client_come_before_later_ones_of_other_clients() {
    let servers = Servers::new(3);
    let (held, process) = overloaded(&servers).await;
    let mut callers = callers(&process).await;
    let other = servers.process(3);
    let later = other.waits();
    sleep(SECOND).await;
    held.release().await.unwrap();
    for _ in 0..CALLERS {
        let (_, held) = callers.join_next().await.unwrap().unwrap();
        assert!(!later.is_finished());
        sleep(MS).await;
        held.unwrap().release().await.unwrap();
    }
    later.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn caller_that_never_had_a_ballot_is_told_when_the_lock_can_be_free() {
    let servers = Servers::new(3);
    let (held, process) = overloaded(&servers).await;
    let callers = callers(&process).await;
    let left = held.votes().lease().remaining;
    let error = acquire_through(&process.queues, Some(Instant::now() + SECOND / 10)).await;
    let Err(Error::Timeout { waited, ttl, .. }) = error else {
        panic!("{error:?}");
    };
    assert!(waited >= SECOND / 10 && waited < SECOND, "{waited:?}");
    assert!(ttl > left / 2 && ttl <= left, "{ttl:?} of {left:?}");
    drop(callers);
    drop(held);
    sleep(10 * SECOND).await;
    assert_eq!(servers.left().await, 0);
    assert!(process.queues.gate().is_idle());
}

#[tokio::test(start_paused = true)]
async fn all_callers_of_an_overloaded_lock_are_told_of_a_dead_majority() {
    let servers = Servers::new(3);
    let (_held, process) = overloaded(&servers).await;
    process.set(0, State::Down);
    process.set(1, State::Down);
    let callers = callers(&process).await;
    let outcomes = timeout(20 * SECOND, callers.join_all())
        .await
        .expect("it is noticed");
    for (caller, outcome) in outcomes {
        assert!(
            matches!(outcome, Err(Error::NoQuorum { .. })),
            "{caller}: {outcome:?}"
        );
    }
    assert!(process.queues.gate().is_idle());
}

type Waiting<'a> = Pin<Box<dyn Future<Output = crate::Result<Majority>> + Send + 'a>>;

/// A caller that has begun to wait, and is not polled again.
async fn begun(process: &Process) -> Waiting<'_> {
    let mut waiting: Waiting<'_> = Box::pin(acquire_through(&process.queues, None));
    assert!(poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending())).await);
    waiting
}

/// The caller that has a ballot does not hear of it.
#[tokio::test(start_paused = true)]
async fn all_callers_of_an_overloaded_lock_are_told_that_the_client_is_closed() {
    let servers = Servers::new(3);
    let (_held, process) = overloaded(&servers).await;
    let with_a_ballot = begun(&process).await;
    let callers = callers(&process).await;
    process
        .quorum
        .servers
        .iter()
        .for_each(|server| server.end_waits());
    process.queues.gate().refuse_all(&Error::Closed);
    assert_eq!(process.quorum.drained().await, 0);
    let outcomes = timeout(SECOND, callers.join_all())
        .await
        .expect("they end at once");
    for (caller, outcome) in outcomes {
        assert!(matches!(outcome, Err(Error::Closed)), "{caller}: {outcome:?}");
    }
    drop(with_a_ballot);
    assert_eq!(servers.left().await, 3, "the holder's");
    assert!(process.queues.gate().is_idle());
}

#[tokio::test(start_paused = true)]
async fn overload_is_forgotten_when_nobody_has_waited_for_a_while() {
    let servers = Servers::new(3);
    let (held, process) = overloaded(&servers).await;
    sleep(IDLE_LIMIT + SECOND).await;
    let callers = callers(&process).await;
    assert_eq!(servers.left().await, 3 + 3 * CALLERS as u64, "all have ballots");
    drop(callers);
    held.release().await.unwrap();
}
