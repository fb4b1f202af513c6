//! Rate limits: how many calls begin, in which order, and what a provider sees, which counts as calls arrive.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fairlock::{Error, LockManager, MemoryStore, RateLimit, Semaphore};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::backend::{Backend, in_a_quorum, on_each_backend};

on_each_backend! {
    calls_of_all_processes_begin_at_the_rate,
    a_burst_is_what_was_saved_before,
    a_call_takes_as_many_turns_as_it_costs,
    a_try_takes_a_turn_only_if_it_begins_now,
    a_try_says_when_the_next_turn_begins_however_late_that_is,
    a_status_says_what_may_begin_and_takes_nothing,
    a_bounded_wait_ends_in_time_and_takes_nothing,
    a_wait_for_many_turns_that_is_given_up_holds_up_nobody,
    waiters_have_their_turns_in_the_order_of_their_arrival,
    a_wait_that_is_dropped_leaves_its_turn_to_the_next,
    a_process_that_is_gone_costs_the_others_no_turn_but_one,
    a_closed_manager_ends_all_waits_for_turns,
    what_a_rate_limit_cannot_be_is_refused_before_anything_is_sent,
}

in_a_quorum! {
    a_rate_limit_is_refused_in_a_quorum,
}

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_secs(30);

/// When the calls of these tasks begin, in order.
async fn begun(limits: impl IntoIterator<Item = RateLimit>, calls: usize) -> Vec<Instant> {
    let times = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for limit in limits {
        let times = Arc::clone(&times);
        tasks.spawn(async move {
            for _ in 0..calls {
                limit.acquire().await.unwrap();
                times.lock().unwrap().push(Instant::now());
            }
        });
    }
    timeout(LONG, tasks.join_all()).await.expect("their turns");
    let mut times = times.lock().unwrap().clone();
    times.sort();
    times
}

/// The largest number of these within a window.
fn most_within(times: &[Instant], window: Duration) -> usize {
    let within = |(first, at): (usize, &Instant)| {
        let later = times[first..].iter();
        later.take_while(|other| **other < *at + window).count()
    };
    times.iter().enumerate().map(within).max().unwrap_or_default()
}

async fn calls_of_all_processes_begin_at_the_rate(backend: Backend) {
    let clients = backend.clients(3).await;
    let limits = (0..12).map(|n| clients[n % 3].rate_limit("a", 100, SECOND));
    let start = Instant::now();
    let times = begun(limits, 20).await;
    let took = times[239] - start;
    // 240 turns, of which the first is at once.
    assert!(
        took + 30 * MS >= 2390 * MS && took < 2390 * MS + backend.slack(),
        "{took:?}"
    );
    if backend.is_in_memory() {
        // Timers have whole milliseconds.
        assert!(most_within(&times, SECOND - MS) <= 100);
        assert!(most_within(&times, 9 * MS) <= 1);
    }
}

async fn a_burst_is_what_was_saved_before(backend: Backend) {
    let locks = backend.client().await;
    let limit = locks.rate_limit("a", 10, SECOND).burst(5);
    let times = begun([limit.clone()], 10).await;
    // Six at once, and then one every 100 ms.
    assert!(times[5] - times[0] < 50 * MS, "{:?}", times[5] - times[0]);
    assert!(
        times[9] - times[0] + 30 * MS >= 400 * MS,
        "{:?}",
        times[9] - times[0]
    );
    sleep(310 * MS).await;
    // Three have been saved since.
    let times = begun([limit], 5).await;
    let (saved, next) = (times[2] - times[0], times[4] - times[0]);
    assert!(
        saved < 80 * MS && next + 50 * MS >= 100 * MS,
        "{saved:?} {next:?}"
    );
}

async fn a_call_takes_as_many_turns_as_it_costs(backend: Backend) {
    let locks = backend.client().await;
    let limit = locks.rate_limit("a", 10, SECOND);
    let start = Instant::now();
    limit.clone().cost(5).acquire().await.unwrap();
    limit.acquire().await.unwrap();
    let waited = start.elapsed();
    assert!(
        waited + 30 * MS >= 500 * MS && waited < 500 * MS + backend.slack(),
        "{waited:?}"
    );
    // What costs much waits for all of it, and nothing cheaper overtakes it.
    let (dear, cheap) = (tokio::spawn(limit.clone().cost(8).acquire()), limit.acquire());
    sleep(5 * MS).await;
    cheap.await.unwrap();
    assert!(dear.is_finished());
    dear.await.unwrap().unwrap();
}

async fn a_try_takes_a_turn_only_if_it_begins_now(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let [here, there] = [here, there].map(|locks| locks.rate_limit("a", 1, 2 * SECOND));
    here.try_acquire().await.unwrap();
    match there.try_acquire().await {
        Err(Error::Busy {
            name, ttl, waiting, ..
        }) => {
            assert_eq!((&*name, waiting), ("a", 0));
            assert!(ttl > SECOND && ttl <= 2 * SECOND, "{ttl:?}");
        }
        other => panic!("{other:?}"),
    }
    let waits = tokio::spawn(here.acquire());
    sleep(50 * MS).await;
    assert!(matches!(
        here.try_acquire().await,
        Err(Error::Busy { waiting: 1, .. })
    ));
    assert!(matches!(
        there.try_acquire().await,
        Err(Error::Busy { waiting: 1, .. })
    ));
    waits.await.unwrap().unwrap();
}

async fn a_try_says_when_the_next_turn_begins_however_late_that_is(backend: Backend) {
    let locks = backend.client().await;
    let limit = locks.rate_limit("a", 1, 3600 * SECOND);
    limit.try_acquire().await.unwrap();
    let (tried, bounded) = (
        limit.try_acquire().await,
        limit.acquire_timeout(Duration::ZERO).await,
    );
    let (Err(Error::Busy { ttl: first, .. }), Err(Error::Timeout { ttl: second, .. })) = (tried, bounded)
    else {
        panic!("both are refused");
    };
    for ttl in [first, second] {
        assert!(ttl > 3500 * SECOND && ttl <= 3600 * SECOND, "{ttl:?}");
    }
}

async fn a_status_says_what_may_begin_and_takes_nothing(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let limit = |locks: &LockManager| locks.rate_limit("a", 1, 10 * SECOND).burst(2);
    let (here, there) = (limit(&here), limit(&there));
    for taken in 0..3 {
        for limit in [&here, &there, &here] {
            let status = limit.status().await.unwrap();
            let shown = (status.available, status.next_turn, status.waiting);
            assert_eq!(shown, (3 - taken, Duration::ZERO, 0));
        }
        // Two turns are a turn and the one after it.
        let both = here.clone().cost(2).status().await.unwrap().next_turn;
        let soonest = [0, 0, 10][usize::try_from(taken).unwrap()] * SECOND;
        assert!(both <= soonest && both + SECOND >= soonest, "{both:?}");
        here.acquire().await.unwrap();
    }
    let status = there.status().await.unwrap();
    assert_eq!((status.available, status.waiting), (0, 0));
    assert!(
        status.next_turn > 9 * SECOND && status.next_turn <= 10 * SECOND,
        "{status:?}"
    );
    let waits = [&here, &there, &there].map(|limit| tokio::spawn(limit.acquire()));
    sleep(100 * MS).await;
    assert_eq!(here.status().await.unwrap().waiting, 2, "clients");
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    // The answer is for the rate of the handle.
    let status = here.burst(9).status().await.unwrap();
    assert_eq!((status.available, status.next_turn), (7, Duration::ZERO));
}

async fn a_bounded_wait_ends_in_time_and_takes_nothing(backend: Backend) {
    let locks = backend.client().await;
    let limit = locks.rate_limit("a", 1, SECOND);
    let start = Instant::now();
    limit.acquire_timeout(Duration::ZERO).await.unwrap();
    for bound in [Duration::ZERO, 100 * MS] {
        match limit.acquire_timeout(bound).await {
            Err(Error::Timeout { name, waited, .. }) => {
                assert!(&*name == "a" && waited >= bound && waited < bound + backend.slack());
            }
            other => panic!("{other:?}"),
        }
    }
    limit.acquire_timeout(LONG).await.unwrap();
    let waited = start.elapsed();
    assert!(
        waited + 30 * MS >= SECOND && waited < SECOND + backend.slack(),
        "{waited:?}"
    );
}

async fn a_wait_for_many_turns_that_is_given_up_holds_up_nobody(backend: Backend) {
    let locks = backend.client().await;
    let limit = locks.rate_limit("a", 10, 10 * SECOND);
    limit.acquire().await.unwrap();
    for is_behind in [false, true] {
        let many = limit.clone().cost(10).acquire_timeout(100 * MS);
        let one = limit.acquire_timeout(3 * SECOND);
        if is_behind {
            let (many, one) = futures_util::join!(many, one);
            assert!(matches!(many, Err(Error::Timeout { .. })), "{many:?}");
            one.unwrap();
        } else {
            assert!(matches!(many.await, Err(Error::Timeout { .. })));
            one.await.unwrap();
        }
    }
}

async fn waiters_have_their_turns_in_the_order_of_their_arrival(backend: Backend) {
    let clients = backend.clients(3).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    clients[0].rate_limit("a", 10, SECOND).acquire().await.unwrap();
    for n in 0..15 {
        let (limit, order) = (clients[n % 3].rate_limit("a", 10, SECOND), Arc::clone(&order));
        tasks.spawn(async move {
            limit.acquire().await.unwrap();
            order.lock().unwrap().push(n);
        });
        // Longer than a call takes, also on a busy machine.
        sleep(30 * MS).await;
    }
    timeout(LONG, tasks.join_all()).await.expect("their turns");
    let order = order.lock().unwrap().clone();
    if backend.is_in_memory() {
        assert!(order.is_sorted(), "{order:?}");
    }
    let displaced = order.iter().enumerate().map(|(place, n)| place.abs_diff(*n));
    assert!(displaced.max() <= Some(2), "{order:?}");
}

async fn a_wait_that_is_dropped_leaves_its_turn_to_the_next(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let [here, there] = [here, there].map(|locks| locks.rate_limit("a", 5, SECOND));
    let start = Instant::now();
    here.acquire().await.unwrap();
    for _ in 0..20 {
        let mut given_up = Box::pin(here.acquire());
        assert!((&mut given_up).now_or_never().is_none());
        sleep(2 * MS).await;
    }
    let next = timeout(LONG, there.acquire()).await;
    next.expect("the next turn").unwrap();
    let waited = start.elapsed();
    // The server learns that nobody waits any more when the next turn is due. That can cost this one turn.
    assert!(waited < 400 * MS + backend.slack(), "{waited:?}");
}

async fn a_process_that_is_gone_costs_the_others_no_turn_but_one(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let (here, limit) = (
        here.rate_limit("a", 20, SECOND),
        there.rate_limit("a", 20, SECOND),
    );
    limit.acquire().await.unwrap();
    let gone: Vec<_> = (0..10).map(|_| here.acquire().boxed()).collect();
    let gone = tokio::spawn(join_all(gone));
    sleep(10 * MS).await;
    gone.abort();
    let start = Instant::now();
    let times = begun([limit], 20).await;
    let took = times[19] - start;
    assert!(took < SECOND + 200 * MS + backend.slack(), "{took:?}");
}

async fn a_closed_manager_ends_all_waits_for_turns(backend: Backend) {
    let locks = backend.client().await;
    let limit = locks.rate_limit("a", 1, Duration::from_secs(600));
    limit.acquire().await.unwrap();
    let waits = tokio::spawn(limit.acquire());
    sleep(50 * MS).await;
    locks.close().await.unwrap();
    // Sooner than the server would be asked again.
    let ended = timeout(3 * SECOND, waits).await.expect("ended").unwrap();
    assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    assert!(matches!(limit.acquire().await, Err(Error::Closed)));
}

async fn what_a_rate_limit_cannot_be_is_refused_before_anything_is_sent(backend: Backend) {
    let locks = backend.client().await;
    let few = || locks.rate_limit("a", 3, SECOND);
    for (limit, why) in [
        (
            locks.rate_limit("", 3, SECOND),
            "lock name \"\": must not be empty",
        ),
        (
            locks.rate_limit("a", 0, SECOND),
            "rate limit of 0 within 1s: must be from 1 to 1000000, and at most 10000 within a second",
        ),
        (
            locks.rate_limit("a", 10_001, SECOND),
            "rate limit of 10001 within 1s: must be from 1 to 1000000, and at most 10000 within a second",
        ),
        (
            locks.rate_limit("a", 1, Duration::ZERO),
            "period 0ns: must be from 1ms to 1 day",
        ),
        (few().burst(1_000_001), "burst 1000001: must be at most 1000000"),
        (
            few().cost(0),
            "cost 0: must be from 1 to the turns of a period and a burst, 3",
        ),
        (
            few().burst(2).cost(6),
            "cost 6: must be from 1 to the turns of a period and a burst, 5",
        ),
        (
            few().group(""),
            "group \"\": must be 1 to 64 bytes without control characters",
        ),
    ] {
        for refused in [
            limit.acquire().await.err(),
            limit.try_acquire().await.err(),
            limit.status().await.err(),
        ] {
            match refused {
                Some(Error::Invalid(invalid)) => assert_eq!(invalid.to_string(), why),
                other => panic!("{other:?} instead of {why}"),
            }
        }
    }
}

async fn a_rate_limit_is_refused_in_a_quorum(backend: Backend) {
    let locks = backend.client().await;
    let limit = locks.rate_limit("a", 3, SECOND);
    for refused in [limit.acquire().await.err(), limit.status().await.err()] {
        assert!(matches!(refused, Some(Error::Invalid(_))), "{refused:?}");
    }
}

/// What a call waits for before it begins.
#[derive(Clone)]
enum Limited {
    ByTurns(RateLimit),
    ByPermits(Semaphore),
}

impl Limited {
    async fn wait(&self) {
        match self {
            Limited::ByTurns(limit) => limit.acquire().await.unwrap(),
            Limited::ByPermits(semaphore) => drop(semaphore.acquire().await.unwrap()),
        }
    }
}

/// The most calls of ten processes that arrive at a provider within a second, and how many on average. Those
/// of each other second are on their way for `way`, and the others for no time.
async fn arrivals(limited: impl Fn(LockManager) -> Limited, way: Duration) -> (usize, f64) {
    const SECONDS: u32 = 20;
    let (store, arrived) = (MemoryStore::new(), Arc::new(Mutex::new(Vec::new())));
    let (mut set, began) = (JoinSet::new(), Instant::now());
    let end = began + SECONDS * SECOND;
    for _ in 0..10 {
        let limited = limited(LockManager::builder().in_memory(&store).unwrap());
        for _ in 0..20 {
            let (limited, arrived) = (limited.clone(), Arc::clone(&arrived));
            set.spawn(async move {
                while Instant::now() < end {
                    limited.wait().await;
                    if began.elapsed().as_secs() % 2 == 0 {
                        sleep(way).await;
                    }
                    arrived.lock().unwrap().push(Instant::now());
                }
            });
        }
    }
    set.join_all().await;
    let mut arrived = arrived.lock().unwrap().clone();
    arrived.sort();
    let span = arrived[arrived.len() - 1] - arrived[0];
    (
        most_within(&arrived, SECOND),
        arrived.len() as f64 / span.as_secs_f64(),
    )
}

#[tokio::test(start_paused = true)]
async fn a_provider_counts_no_more_than_the_limit_and_what_the_ways_differ_by() {
    for (way, more) in [(Duration::ZERO, 1), (30 * MS, 3), (200 * MS, 11)] {
        let limited = |locks: LockManager| Limited::ByTurns(locks.rate_limit("api", 50, SECOND));
        let (most, average) = arrivals(limited, way).await;
        assert!(most <= 50 + more, "{most} with ways of up to {way:?}");
        assert!(
            (47.5..=50.5).contains(&average),
            "{average} with ways of up to {way:?}"
        );
    }
    // Permits that are kept for a second come back together, and the calls of two such moments meet. At some
    // moment twice the limit is counted.
    let permits = |locks: LockManager| Limited::ByPermits(locks.semaphore("api", 50).at_least(SECOND));
    let (most, _) = arrivals(permits, 200 * MS).await;
    assert!(most > 90, "{most}");
}

#[tokio::test]
async fn waits_that_are_given_up_together_hold_up_nothing_else() {
    let locks = LockManager::in_memory();
    let begun = |limit: RateLimit| {
        let mut wait = Box::pin(limit.acquire());
        assert!((&mut wait).now_or_never().is_none());
        wait
    };
    let limit = locks.rate_limit("a", 1, LONG);
    limit.acquire().await.unwrap();
    let waits: Vec<_> = (0..50_000).map(|_| begun(limit.clone())).collect();
    let began = std::time::Instant::now();
    drop(waits);
    assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());

    let began = std::time::Instant::now();
    let waits: Vec<_> = (0..20_000)
        .map(|number| begun(locks.rate_limit(format!("of {number}"), 1, LONG)))
        .collect();
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
    drop(waits);
}

fn client(store: &MemoryStore) -> LockManager {
    LockManager::builder().in_memory(store).unwrap()
}

/// Race: The first caller of each process gives up, and the next one takes its place, before it has a turn.
#[tokio::test(start_paused = true)]
async fn turns_are_used_though_more_callers_give_up_than_have_turns() {
    let store = MemoryStore::new();
    let used = Arc::new(Mutex::new(0));
    let start = Instant::now();
    let mut arrivals = JoinSet::new();
    for n in 0..10 {
        let limit = client(&store).rate_limit("a", 50, SECOND);
        let used = Arc::clone(&used);
        arrivals.spawn(async move {
            sleep(n * 2 * MS).await;
            let mut calls = JoinSet::new();
            while start.elapsed() < 10 * SECOND {
                let (call, used) = (limit.acquire_timeout(SECOND), Arc::clone(&used));
                calls.spawn(async move {
                    if call.await.is_ok() && start.elapsed() > 5 * SECOND {
                        *used.lock().unwrap() += 1;
                    }
                });
                sleep(25 * MS).await;
            }
            calls.join_all().await;
        });
    }
    arrivals.join_all().await;
    let used = *used.lock().unwrap();
    // 5 s, and the last second's callers.
    assert!((270..=310).contains(&used), "{used}");
}

#[tokio::test(start_paused = true)]
async fn callers_that_name_another_burst_give_no_turn_twice() {
    let store = MemoryStore::new();
    let (saving, other) = (client(&store), client(&store));
    let saving = saving.rate_limit("a", 10, SECOND).burst(100);
    let other = other.rate_limit("a", 10, SECOND);
    let begun = Arc::new(Mutex::new(0));
    for _ in 0..200 {
        let (call, begun) = (saving.acquire(), Arc::clone(&begun));
        tokio::spawn(async move {
            call.await.unwrap();
            *begun.lock().unwrap() += 1;
        });
    }
    for _ in 0..50 {
        sleep(20 * MS).await;
        assert!(other.acquire_timeout(MS).await.is_err());
        assert!(other.try_acquire().await.is_err());
    }
    let begun = *begun.lock().unwrap();
    assert!((100..=112).contains(&begun), "{begun}");
}

/// Race: A process whose caller needs many turns is first in the queue, and its caller gives up.
#[tokio::test(start_paused = true)]
async fn a_wait_for_many_turns_that_is_given_up_holds_up_no_other_process() {
    let store = MemoryStore::new();
    let [here, there] = [client(&store), client(&store)].map(|locks| locks.rate_limit("a", 100, 10 * SECOND));
    here.acquire().await.unwrap();
    let many = tokio::spawn(here.cost(100).acquire_timeout(100 * MS));
    sleep(50 * MS).await;
    let start = Instant::now();
    there.acquire().await.unwrap();
    assert!(start.elapsed() < SECOND, "{:?}", start.elapsed());
    assert!(many.await.unwrap().is_err());
}
