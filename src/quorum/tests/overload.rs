//! Overload: more callers than can be served in time, which give up.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::options::{MAX_WAITLISTS_KEPT, WAITLIST_KEPT};

const RUN_TIME: Duration = Duration::from_secs(6);
const TASKS: usize = 200;

/// How a caller gives up.
#[derive(Clone, Copy, Debug)]
enum Way {
    Bound,
    Drop,
}

async fn acquire_or_give_up(quorum: &Arc<Quorum>, way: Way, patience: Duration) -> Option<Majority> {
    match way {
        Way::Bound => acquire_with(quorum, Some(Instant::now() + patience)).await.ok(),
        Way::Drop => {
            let acquiring = pin!(acquire_with(quorum, None));
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
        let (quorum, served) = (Arc::clone(&process.quorum), Arc::clone(&served));
        tasks.spawn(async move {
            while Instant::now() < end {
                if let Some(held) = acquire_or_give_up(&quorum, way, patience).await {
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
    assert!(process.quorum.applicants.are_idle(), "{way:?}");
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

/// A lock that a process holds, and another process most of whose callers gave up.
async fn overloaded(servers: &Servers) -> (Majority, Process) {
    let held = servers.process(1).acquire().await;
    let process = servers.process(2);
    for _ in 0..40 {
        let error = acquire_with(&process.quorum, Some(Instant::now() + MS)).await;
        assert!(matches!(error, Err(Error::Timeout { .. })));
    }
    sleep(MS).await;
    assert_eq!(servers.left().await, 3, "the holder's");
    (held, process)
}

const CALLERS: usize = 10;

/// Callers that wait until a minute is over. The number of each comes with its outcome.
async fn callers(process: &Process) -> JoinSet<(usize, crate::Result<Majority>)> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let quorum = Arc::clone(&process.quorum);
        callers.spawn(async move {
            sleep(u32::try_from(caller).unwrap() * MS).await;
            (
                caller,
                acquire_with(&quorum, Some(Instant::now() + 60 * SECOND)).await,
            )
        });
    }
    sleep(SECOND).await;
    callers
}

/// Race: Applicants that wait in the client are overtaken, or hold up others.
#[tokio::test(start_paused = true)]
async fn callers_of_an_overloaded_lock_wait_in_the_client_and_keep_their_order() {
    let servers = Servers::new(3);
    let (held, process) = overloaded(&servers).await;
    let mut callers = callers(&process).await;
    assert_eq!(servers.left().await, 3 + 3, "the holder's, and one ballot's");
    assert_eq!(process.quorum.waiting(), CALLERS);
    held.release().await.unwrap();
    for expected in 0..CALLERS {
        let (caller, held) = callers.join_next().await.unwrap().unwrap();
        assert_eq!(caller, expected);
        held.unwrap().release().await.unwrap();
    }
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
    assert!(process.quorum.applicants.are_idle());
}

/// Race: Applicants that wait in the client are overtaken, or hold up others.
#[tokio::test(start_paused = true)]
async fn callers_that_wait_in_the_client_come_before_later_ones_of_other_clients() {
    let servers = Servers::new(3);
    let (held, process) = overloaded(&servers).await;
    let mut callers = callers(&process).await;
    let other = servers.process(3);
    let later = other.waits();
    sleep(SECOND).await;
    held.release().await.unwrap();
    for expected in 0..CALLERS {
        let (caller, held) = callers.join_next().await.unwrap().unwrap();
        assert_eq!(caller, expected);
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
    let left = held.votes().lease().remaining();
    let error = acquire_with(&process.quorum, Some(Instant::now() + SECOND / 10)).await;
    let Err(Error::Timeout { waited, retry_after }) = error else {
        panic!("{error:?}");
    };
    assert!(waited >= SECOND / 10 && waited < SECOND, "{waited:?}");
    assert!(
        retry_after > left / 2 && retry_after <= left,
        "{retry_after:?} of {left:?}"
    );
    drop(callers);
    drop(held);
    sleep(10 * SECOND).await;
    assert_eq!(servers.left().await, 0);
    assert!(process.quorum.applicants.are_idle());
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
    assert!(process.quorum.applicants.are_idle());
}

type Waiting<'a> = Pin<Box<dyn Future<Output = crate::Result<Majority>> + Send + 'a>>;

/// A caller that has begun to wait, and is not polled again.
async fn begun(process: &Process) -> Waiting<'_> {
    let mut waiting: Waiting<'_> = Box::pin(acquire_with(&process.quorum, None));
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
    assert_eq!(process.quorum.close().await, 0);
    let outcomes = timeout(SECOND, callers.join_all())
        .await
        .expect("they end at once");
    for (caller, outcome) in outcomes {
        assert!(matches!(outcome, Err(Error::Closed)), "{caller}: {outcome:?}");
    }
    drop(with_a_ballot);
    assert_eq!(servers.left().await, 3, "the holder's");
    assert!(process.quorum.applicants.are_idle());
}

#[tokio::test(start_paused = true)]
async fn cancelled_callers_of_an_overloaded_lock_leave_their_places_to_others() {
    let servers = Servers::new(3);
    let (held, process) = overloaded(&servers).await;
    let leaving = callers(&process).await;
    let staying = callers(&process).await;
    drop(leaving);
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 3 + 3, "the holder's, and one ballot's");
    held.release().await.unwrap();
    let served = tokio::spawn(async move {
        let mut staying = staying;
        while let Some(outcome) = staying.join_next().await {
            outcome.unwrap().1.unwrap().release().await.unwrap();
        }
    });
    timeout(SECOND, served).await.expect("each has its turn").unwrap();
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
    assert!(process.quorum.applicants.are_idle());
}

#[tokio::test(start_paused = true)]
async fn caller_that_is_dropped_as_it_is_admitted_gives_its_place_back() {
    let servers = Servers::new(3);
    let (held, process) = overloaded(&servers).await;
    let first = begun(&process).await;
    let second = begun(&process).await;
    let third = process.waits();
    sleep(MS).await;
    drop(first);
    // It has been admitted and has not heard of it.
    drop(second);
    sleep(SECOND).await;
    held.release().await.unwrap();
    let next = timeout(SECOND, third).await.expect("it is admitted").unwrap();
    next.release().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
    assert!(process.quorum.applicants.are_idle());
}

#[tokio::test(start_paused = true)]
async fn all_callers_are_in_the_queues_again_once_most_are_served() {
    let servers = Servers::new(3);
    let (held, process) = overloaded(&servers).await;
    held.release().await.unwrap();
    for _ in 0..60 {
        process.acquire().await.release().await.unwrap();
    }
    let held = servers.process(1).acquire().await;
    let callers = callers(&process).await;
    assert_eq!(servers.left().await, 3 + 3 * CALLERS as u64);
    drop(callers);
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn overload_is_forgotten_when_nobody_has_waited_for_a_while() {
    let servers = Servers::new(3);
    let (held, process) = overloaded(&servers).await;
    sleep(WAITLIST_KEPT + SECOND).await;
    let callers = callers(&process).await;
    assert_eq!(servers.left().await, 3 + 3 * CALLERS as u64);
    drop(callers);
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn only_so_many_idle_locks_are_remembered() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    for server in 0..3 {
        process.set(server, State::Hung);
    }
    for n in 0..2 * MAX_WAITLISTS_KEPT {
        let keys = Arc::new(Keys::new("fairlock", &n.to_string()).unwrap());
        let wanted = Wanted {
            channel: keys.channel_of(&process.quorum.client().id),
            keys,
            ..wanted(&process.quorum, Some(Instant::now()))
        };
        let error = process.quorum.acquire(wanted).await;
        assert!(matches!(error, Err(Error::Timeout { .. })), "{error:?}");
    }
    let remembered = process.quorum.applicants.len();
    assert!(
        remembered > 0 && remembered <= MAX_WAITLISTS_KEPT + 1,
        "{remembered}"
    );
}
