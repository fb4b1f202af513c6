//! Waiters are served in arrival order, and every waiter is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fairlock::{Error, Lock, LockManager};
use fairlock_testkit::{History, Proxy};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use crate::backend::{
    Backend, in_a_quorum, local_handoffs_in_a_quorum, on_each_backend, on_each_backend_in_parallel,
    with_local_handoffs,
};

on_each_backend! {
    waiters_of_many_clients_are_served_in_the_order_of_the_queue,
    calls_of_one_client_are_served_in_the_order_of_their_first_polls,
    a_future_that_is_not_polled_has_no_place,
    cancelled_waiter_does_not_reorder_the_queue,
    wait_outlives_all_timers,
    a_release_and_a_new_wait_go_to_the_end_of_the_queue,
    leases_that_are_meant_to_run_out_change_no_order,
}

// Not here: tests that count the requests on the server, where each process waits once, or that need one
// order over all processes.
with_local_handoffs! {
    a_release_and_a_new_wait_go_to_the_end_of_the_queue,
}

in_a_quorum! {
    waiters_of_many_clients_are_served_in_the_order_of_the_queue,
    calls_of_one_client_are_served_in_the_order_of_their_first_polls,
    a_future_that_is_not_polled_has_no_place,
    cancelled_waiter_does_not_reorder_the_queue,
    wait_outlives_all_timers,
    a_release_and_a_new_wait_go_to_the_end_of_the_queue,
    leases_that_are_meant_to_run_out_change_no_order,
}

local_handoffs_in_a_quorum! {
    a_release_and_a_new_wait_go_to_the_end_of_the_queue,
}

on_each_backend_in_parallel! {
    a_try_never_overtakes_a_waiter,
    five_hundred_waiters_are_all_served,
    every_one_of_many_clients_finishes_its_rounds,
}

const LONG: Duration = Duration::from_secs(30);

/// Waits for the lock in a task, and logs the wait.
fn wait(tasks: &mut JoinSet<()>, lock: &Lock, history: &History, waiter: usize) {
    let (wait, history) = (lock.acquire(), history.clone());
    tasks.spawn(async move {
        let entry = history.asks(waiter);
        let guard = wait.await.unwrap();
        entry.granted(guard.fence().get());
        entry.released();
        guard.release().await.unwrap();
    });
}

async fn join_all(mut tasks: JoinSet<()>) {
    let all = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
    timeout(LONG, all).await.expect("all are served");
}

async fn waiters_of_many_clients_are_served_in_the_order_of_the_queue(backend: Backend) {
    const WAITERS: usize = 64;
    let holder = backend.client().await;
    let clients = backend.clients(4).await;
    let lock = holder.lock("a");
    let guard = lock.acquire().await.unwrap();
    let history = History::default();
    let mut tasks = JoinSet::new();
    for waiter in 0..WAITERS {
        wait(&mut tasks, &clients[waiter * 7 % 4].lock("a"), &history, waiter);
        let queued = u64::try_from(waiter + 1).unwrap();
        backend.queued(&lock, queued, 1).await;
    }
    backend.queued(&lock, 64, 4).await;
    guard.release().await.unwrap();
    join_all(tasks).await;
    history.assert_order(0..WAITERS);
    history.assert_no_overlap();
    history.assert_fences_increase();
}

/// Most holders let their leases expire, in both of the possible ways. The server must not take their clients
/// for dead.
///
/// Race: A lease that is meant to expire is taken for the death of its client.
async fn leases_that_are_meant_to_run_out_change_no_order(backend: Backend) {
    const WAITERS: usize = 30;
    let lease = Duration::from_millis(150);
    // Other clients ask for the lock when it is free, whichever request is next.
    let clients = backend.clients(3).await;
    let lock = clients[0].lock("a");
    let guard = lock.acquire().await.unwrap();
    let history = History::default();
    let mut tasks = JoinSet::new();
    for waiter in 0..WAITERS {
        let lock = clients[waiter / 3 % 3].lock("a");
        let lock = match waiter % 3 {
            0 => lock.lease(lease).auto_renew(false),
            1 => lock.max_hold(lease),
            _ => lock.lease(lease),
        };
        let (wait, history) = (lock.acquire(), history.clone());
        tasks.spawn(async move {
            let entry = history.asks(waiter);
            let guard = wait.await.unwrap();
            entry.granted(guard.fence().get());
            match waiter % 3 {
                0 | 1 => drop(guard.lost().await),
                _ => guard.release().await.unwrap(),
            }
            entry.released();
        });
        let queued = u64::try_from(waiter + 1).unwrap();
        backend.queued(&clients[0].lock("a"), queued, 1).await;
    }
    backend.queued(&clients[0].lock("a"), WAITERS as u64, 3).await;
    guard.release().await.unwrap();
    join_all(tasks).await;
    history.assert_order(0..WAITERS);
    history.assert_fences_increase();
}

/// Race: Tasks of one client overtake each other.
async fn calls_of_one_client_are_served_in_the_order_of_their_first_polls(backend: Backend) {
    let client = backend.client().await;
    let guard = client.lock("a").acquire().await.unwrap();
    let order = std::sync::Mutex::new(Vec::new());
    let wait = async |waiter: u32| {
        let guard = client.lock("a").acquire().await.unwrap();
        order.lock().unwrap().push(waiter);
        guard.release().await.unwrap();
    };
    let release = async {
        backend.queued(&client.lock("a"), 4, 1).await;
        guard.release().await.unwrap();
    };
    // `biased`: the futures are polled from first to last.
    let all = async { tokio::join!(biased; wait(0), wait(1), wait(2), wait(3), release) };
    timeout(LONG, all).await.expect("all are served");
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
}

async fn a_future_that_is_not_polled_has_no_place(backend: Backend) {
    let client = backend.client().await;
    let guard = client.lock("a").acquire().await.unwrap();
    let made_first = client.lock("a").acquire();
    let history = History::default();
    let mut tasks = JoinSet::new();
    wait(&mut tasks, &client.lock("a"), &history, 1);
    backend.queued(&client.lock("a"), 1, 1).await;
    tasks.spawn({
        let history = history.clone();
        async move {
            let entry = history.asks(2);
            let guard = made_first.await.unwrap();
            entry.granted(guard.fence().get());
            entry.released();
        }
    });
    backend.queued(&client.lock("a"), 2, 1).await;
    guard.release().await.unwrap();
    join_all(tasks).await;
    history.assert_order([1, 2]);
}

async fn cancelled_waiter_does_not_reorder_the_queue(backend: Backend) {
    const WAITERS: usize = 12;
    let holder = backend.client().await;
    let (clients, impatient) = (backend.clients(3).await, backend.client().await);
    let lock = holder.lock("a");
    let guard = lock.acquire().await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let quitters: Vec<_> = (0..4u64)
        .map(|number| {
            let (lock, over) = (impatient.lock("a"), Arc::clone(&over));
            tokio::spawn(async move {
                let mut gave_up = 0;
                while !over.load(Ordering::Relaxed) {
                    let bound = Duration::from_millis(5 + number);
                    match lock.acquire_timeout(bound).await {
                        // A busy server may take longer than that to answer.
                        Err(error) if error.is_transient() => gave_up += 1,
                        other => drop(other.unwrap()),
                    }
                }
                gave_up
            })
        })
        .collect();
    let history = History::default();
    let mut tasks = JoinSet::new();
    for waiter in 0..WAITERS {
        let client = &clients[waiter % 3];
        let before = client.stats().waiting;
        wait(&mut tasks, &client.lock("a"), &history, waiter);
        while client.stats().waiting == before {
            yield_now().await;
        }
        // Impatient callers keep coming and going, so the queue never gets longer than this, and no call
        // takes longer than this. A caller is counted a moment before its call is sent.
        sleep(Duration::from_millis(if backend.is_a_quorum() {
            100
        } else {
            30
        }))
        .await;
        client.ping().await.unwrap();
    }
    sleep(Duration::from_millis(100)).await;
    while backend.subscriptions().await < 3 {
        sleep(Duration::from_millis(2)).await;
    }
    guard.release().await.unwrap();
    join_all(tasks).await;
    over.store(true, Ordering::Relaxed);
    for quitter in quitters {
        assert!(quitter.await.unwrap() > 3, "the quitter gives up repeatedly");
    }
    history.assert_order(0..WAITERS);
}

/// Race: A wait lasts longer than every timer.
async fn wait_outlives_all_timers(backend: Backend) {
    let here = backend.client().await;
    // These are the shortest timers allowed. In memory, an hour passes.
    let there = backend
        .client_with(|settings| {
            settings
                .claim_window(Duration::from_millis(100))
                .server_timeout(Duration::from_secs(1))
        })
        .await;
    let guard = here.lock("a").acquire().await.unwrap();
    let history = History::default();
    let mut tasks = JoinSet::new();
    for waiter in 0..3 {
        wait(&mut tasks, &there.lock("a"), &history, waiter);
        backend
            .queued(&here.lock("a"), u64::try_from(waiter).unwrap() + 1, 1)
            .await;
    }
    sleep(if backend.is_in_memory() {
        Duration::from_secs(60 * 60)
    } else {
        Duration::from_millis(2500)
    })
    .await;
    assert_eq!(here.lock("a").status().await.unwrap().waiting, 3);
    guard.release().await.unwrap();
    join_all(tasks).await;
    history.assert_order(0..3);
}

async fn a_release_and_a_new_wait_go_to_the_end_of_the_queue(backend: Backend) {
    let (here, there) = (backend.client().await, backend.client().await);
    let mut guard = here.lock("a").acquire().await.unwrap();
    for _ in 0..3 {
        let waiter = tokio::spawn(there.lock("a").acquire());
        backend.queued(&here.lock("a"), 1, 1).await;
        let again = here.lock("a").acquire();
        guard.release().await.unwrap();
        let again = tokio::spawn(again);
        let next = timeout(LONG, waiter).await.expect("served").unwrap().unwrap();
        backend.queued(&here.lock("a"), 1, 1).await;
        assert!(!again.is_finished());
        next.release().await.unwrap();
        guard = timeout(LONG, again).await.expect("served").unwrap().unwrap();
    }
    guard.release().await.unwrap();
}

async fn a_try_never_overtakes_a_waiter(backend: Backend) {
    const WAITERS: usize = 24;
    let (holder, hasty) = (backend.client().await, backend.client().await);
    let clients = backend.clients(2).await;
    let lock = holder.lock("a");
    let guard = lock.acquire().await.unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for waiter in 0..WAITERS {
        let (wait, served) = (clients[waiter % 2].lock("a").acquire(), Arc::clone(&served));
        tasks.spawn(async move {
            let guard = wait.await.unwrap();
            served.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_millis(1)).await;
            guard.release().await.unwrap();
        });
    }
    backend.queued(&lock, u64::try_from(WAITERS).unwrap(), 2).await;
    for client in [&hasty, &hasty, &holder] {
        let (lock, served) = (client.lock("a"), Arc::clone(&served));
        tasks.spawn(async move {
            loop {
                let got = lock.try_acquire().await;
                if !matches!(got, Err(Error::Busy { .. })) {
                    let guard = got.unwrap();
                    assert_eq!(served.load(Ordering::SeqCst), WAITERS, "overtaken");
                    guard.release().await.unwrap();
                    return;
                }
                yield_now().await;
            }
        });
    }
    guard.release().await.unwrap();
    join_all(tasks).await;
}

async fn five_hundred_waiters_are_all_served(backend: Backend) {
    let clients = backend.clients(4).await;
    let history = History::default();
    let mut tasks = JoinSet::new();
    for waiter in 0..500 {
        wait(&mut tasks, &clients[waiter % 4].lock("a"), &history, waiter);
    }
    join_all(tasks).await;
    assert_eq!(history.grants().len(), 500);
    history.assert_no_overlap();
}

async fn every_one_of_many_clients_finishes_its_rounds(backend: Backend) {
    const ROUNDS: usize = 100;
    let clients = backend.clients(10).await;
    let history = History::default();
    let mut tasks = JoinSet::new();
    for (number, client) in clients.into_iter().enumerate() {
        let history = history.clone();
        tasks.spawn(async move {
            let lock = client.lock("a");
            for _ in 0..ROUNDS {
                let entry = history.asks(number);
                let guard = lock.acquire().await.unwrap();
                entry.granted(guard.fence().get());
                entry.released();
                guard.release().await.unwrap();
            }
        });
    }
    join_all(tasks).await;
    let order = history.order();
    for number in 0..10 {
        let rounds = order
            .iter()
            .filter(|waiter| **waiter == number.to_string())
            .count();
        assert_eq!(rounds, ROUNDS);
    }
    history.assert_no_overlap();
    history.assert_fences_increase();
}

mod on_a_real_server {
    use super::*;

    /// A newcomer misses its turn if its subscription is not up yet. Its driver polls as soon as the
    /// subscription is up, and all requests that missed their turn with it ask again too.
    ///
    /// Race: A newcomer's turn comes before its subscription is up.
    #[tokio::test]
    async fn turns_missed_together_are_recovered_without_a_timer() {
        let backend = Backend::on_a_server().await;
        let here = backend.client().await;
        let proxy = Proxy::start(backend.server().unwrap().port());
        let settings = LockManager::builder().prefix(backend.prefix());
        let far = settings.connect(&proxy.url()).await.unwrap();
        let guard = here.lock("a").acquire().await.unwrap();
        proxy.delay_down(Duration::from_millis(150));
        let mut waits = JoinSet::new();
        for _ in 0..8 {
            waits.spawn(far.lock("a").acquire());
        }
        backend.queued(&here.lock("a"), 8, 0).await;
        // These requests are unreachable, and are removed.
        guard.release().await.unwrap();
        let guard = here.lock("a").acquire().await.unwrap();
        assert_eq!(here.lock("a").status().await.unwrap().waiting, 0);
        // One more request is queued, and the client counts as alive again.
        waits.spawn(far.lock("a").acquire());
        backend.queued(&here.lock("a"), 1, 1).await;
        guard.release().await.unwrap();
        let all = async {
            while let Some(guard) = waits.join_next().await {
                guard.unwrap().unwrap().release().await.unwrap();
            }
        };
        timeout(Duration::from_secs(4), all)
            .await
            .expect("no wait for a timer");
    }
}
