//! Tests that no caller is worse off because applicants wait in the client while most callers give up.

use super::super::applicants::Application;
use super::*;
use crate::Owner;

impl Fixture {
    /// The other client holds the lock, and one request waits. So many have given up that there is no further
    /// place.
    async fn full() -> (Fixture, LockGuard, Vec<JoinHandle<LockGuard>>) {
        let fixture = Fixture::new();
        let guard = fixture.other.acquire().await.unwrap();
        for _ in 0..32 {
            fixture
                .lock
                .acquire_timeout(Duration::from_millis(10))
                .await
                .unwrap_err();
        }
        let waiters = vec![fixture.waiter().await];
        (fixture, guard, waiters)
    }

    /// A caller that comes to the waitlist while there is no place.
    fn applied(&self) -> Application {
        let (waitlist, options) = (self.waitlist(), &self.waitlists().client().options);
        let terms = LockOptions::default().terms(options).unwrap();
        let request = || self.waitlists().client().next_request(&terms, None);
        match waitlist.enter(terms, waitlist.newcomer(), request).unwrap() {
            Entered::Waiter(_) => panic!("admission is open"),
            Entered::Applicant(application) => *application,
        }
    }

    /// How many requests are in the server's queue.
    async fn queued(&self) -> u64 {
        self.other.status().await.unwrap().waiting
    }
}

#[tokio::test(start_paused = true)]
async fn applicant_is_not_in_the_queue_and_leaves_nothing() {
    let (fixture, _guard, _waiters) = Fixture::full().await;
    let waits = fixture.waiter().await;
    assert_eq!(fixture.queued().await, 1);
    waits.abort();
    let left = fixture
        .lock
        .acquire_timeout(Duration::from_millis(10))
        .await
        .unwrap_err();
    assert!(matches!(left, Error::Timeout { retry_after, .. } if retry_after > Duration::from_secs(1)));
    settle().await;
    assert_eq!(fixture.queued().await, 1);
    assert!(locked(&fixture.waitlist().state).applicants().is_empty());
    assert_eq!(fixture.locks.shared().background().pending(), 0);
}

/// Race: Applicants that wait in the client are overtaken, or hold up others.
#[tokio::test(start_paused = true)]
async fn applicants_are_served_by_arrival_among_all_clients() {
    let (fixture, guard, mut waiters) = Fixture::full().await;
    for n in 0..6 {
        sleep(Duration::from_millis(10)).await;
        waiters.push(match n % 2 {
            0 => fixture.waiter().await,
            _ => {
                let wait = fixture.other.acquire();
                let waiter = tokio::spawn(async move { wait.await.unwrap() });
                settle().await;
                waiter
            }
        });
    }
    assert_eq!(fixture.queued().await, 4, "three wait in the client");
    let mut guard = guard;
    for waiter in waiters {
        released(guard).await;
        guard = granted(waiter).await;
    }
}

/// Race: Applicants that wait in the client are overtaken, or hold up others.
#[tokio::test(start_paused = true)]
async fn owner_with_a_possible_hold_is_not_delayed() {
    let (fixture, guard, waiters) = Fixture::full().await;
    let owner = Owner::new();
    let outer = {
        let wait = fixture.lock.clone().owner(&owner).acquire();
        tokio::spawn(async move { wait.await.unwrap() })
    };
    settle().await;
    released(guard).await;
    for waiter in waiters {
        released(granted(waiter).await).await;
    }
    let _outer = granted(outer).await;
    let _full = [
        fixture.waiter().await,
        fixture.waiter().await,
        fixture.waiter().await,
    ];
    let inner = fixture
        .lock
        .clone()
        .owner(&owner)
        .acquire_timeout(Duration::from_millis(10));
    drop(inner.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn applicant_is_told_that_the_server_is_away() {
    let (fixture, _guard, _waiters) = Fixture::full().await;
    let waits = tokio::spawn(fixture.lock.acquire());
    settle().await;
    fixture.seen.lose_calls(u32::MAX);
    let options = &fixture.waitlists().client().options;
    sleep(options.poll_interval() + 2 * options.server_timeout).await;
    assert!(waits.is_finished());
    assert!(matches!(waits.await.unwrap(), Err(Error::Unavailable(_))));
}

#[tokio::test(start_paused = true)]
async fn applicant_is_told_that_its_client_is_closed() {
    let (fixture, _guard, waiters) = Fixture::full().await;
    drop(waiters);
    let waits = tokio::spawn(fixture.lock.acquire());
    settle().await;
    fixture.locks.close().await.unwrap();
    assert!(matches!(waits.await.unwrap(), Err(Error::Closed)));
    settle().await;
    assert_eq!(fixture.waitlists().len(), 0);
}

/// Race: Applicants that wait in the client are overtaken, or hold up others.
#[tokio::test(start_paused = true)]
async fn applicant_admitted_as_its_time_ends_delays_no_other() {
    let (fixture, guard, mut waiters) = Fixture::full().await;
    let patience = Duration::from_millis(100);
    let wait = fixture.lock.acquire_timeout(patience);
    let gives_up = tokio::spawn(wait);
    settle().await;
    let next = fixture.waiter().await;
    // The caller is polled again only when there is a place and its time is over.
    assert!(tokio::time::advance(patience).now_or_never().is_none());
    released(guard).await;
    gives_up.await.unwrap().unwrap_err();
    waiters.push(next);
    for waiter in waiters {
        released(granted(waiter).await).await;
    }
    settle().await;
    assert_eq!(
        (
            fixture.queued().await,
            fixture.locks.shared().background().pending()
        ),
        (0, 0)
    );
}

/// Race: Applicants that wait in the client are overtaken, or hold up others.
#[tokio::test(start_paused = true)]
async fn newcomer_is_admitted_though_applicants_stay_past_their_bounds() {
    let (fixture, guard, waiters) = Fixture::full().await;
    let mut stalled: Vec<_> = (1..=3)
        .map(|n| Box::pin(fixture.lock.acquire_timeout(Duration::from_millis(10 * n))))
        .collect();
    tokio::select! {
        biased;
        _ = futures_util::future::select_all(&mut stalled) => panic!("there is no place"),
        () = settle() => {}
    }
    stand_still(Duration::from_millis(30));
    for waiter in waiters {
        waiter.abort();
    }
    settle().await;
    assert_eq!(
        fixture.queued().await,
        0,
        "an applicant past its bound is not admitted"
    );
    let newcomer = fixture.waiter().await;
    handed_over(guard, newcomer).await;
    for stalled in stalled {
        assert!(matches!(stalled.await, Err(Error::Timeout { .. })));
    }
    assert!(fixture.waitlist().is_empty());
}

#[tokio::test(start_paused = true)]
async fn applicant_giving_up_as_it_is_admitted_leaves_nothing() {
    for is_granted in [true, false] {
        let (fixture, guard, waiters) = Fixture::full().await;
        // Its caller does not read that it was admitted.
        let application = fixture.applied();
        let mut guard = Some(guard);
        for waiter in waiters {
            if is_granted {
                released(guard.take().unwrap()).await;
                guard = Some(granted(waiter).await);
            } else {
                waiter.abort();
            }
        }
        if is_granted {
            released(guard.take().unwrap()).await;
        }
        settle().await;
        assert_eq!(fixture.queued().await, u64::from(!is_granted));
        fixture.waitlist().cancel(application);
        settle().await;
        assert_eq!(fixture.queued().await, 0);
        assert!(fixture.waitlist().is_empty());
        drop(guard);
        settle().await;
        assert!(fixture.other.status().await.unwrap().holder.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn applicant_admitted_by_arrival_was_not_queued_before() {
    let fixture = Fixture::new();
    let waitlist = fixture.waitlist();
    let client = fixture.waitlists().client();
    let terms = LockOptions::default().terms(&client.options).unwrap();
    for is_admitted in [true, false] {
        let standing = Standing {
            ticket: Some(Ticket(1)),
            was_queued: is_admitted,
            is_admitted,
            ..waitlist.newcomer()
        };
        let request = client.next_request(&terms, None);
        let number = request.number();
        let mut state = locked(&waitlist.state);
        state.join(client.now(), request, terms, standing);
        assert_eq!(state.waiters[&number].was_queued, is_admitted);
    }
}

#[tokio::test(start_paused = true)]
async fn once_most_are_served_again_all_are_in_the_queue() {
    let (fixture, guard, mut waiters) = Fixture::full().await;
    for _ in 0..100 {
        waiters.push(fixture.waiter().await);
    }
    assert_eq!(fixture.queued().await, 1);
    let mut guard = guard;
    for waiter in waiters.drain(..60) {
        released(guard).await;
        guard = granted(waiter).await;
    }
    assert_eq!(fixture.queued().await, 41);
    for waiter in waiters {
        released(guard).await;
        guard = granted(waiter).await;
    }
}

#[tokio::test(start_paused = true)]
async fn place_by_arrival_is_behind_earlier_ones() {
    let fixture = Fixture::new();
    let waitlist = fixture.waitlist();
    let client = fixture.waitlists().client();
    let terms = LockOptions::default().terms(&client.options).unwrap();
    let state = &mut *locked(&waitlist.state);
    let [before, mut first, mut second, after] = [(); 4].map(|()| waitlist.newcomer());
    let joins = |state: &mut State, standing, ticket| {
        let request = client.next_request(&terms, None);
        state.join(client.now(), request, terms, Standing { ticket, ..standing });
    };
    // As if the server's clock were ahead of the estimate here.
    let far = Ticket(u64::MAX / 2);
    joins(state, before.clone(), Some(far));
    waitlist.give_places(client.now(), state, [&mut first, &mut second]);
    assert_eq!(first.ticket, Some(Ticket(far.0 + 1)));
    assert_eq!(second.ticket, Some(Ticket(far.0 + 2)));
    joins(state, after, Some(Ticket(far.0 + 7)));
    let mut last = Standing {
        arrived: client.now().after(Duration::from_millis(1)),
        ..first.clone()
    };
    waitlist.give_places(client.now(), state, [&mut first, &mut last]);
    assert_eq!(
        (first.ticket, last.ticket),
        (Some(Ticket(far.0 + 8)), Some(Ticket(far.0 + 9)))
    );
    joins(state, before, None);
    waitlist.give_places(client.now(), state, [&mut first, &mut last]);
    assert_eq!((first.ticket, last.ticket), (None, None));
}
