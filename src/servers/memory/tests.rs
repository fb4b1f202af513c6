//! Tests of what the store adds to the rules.

mod state_access;

pub(crate) use state_access::Written;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;

use super::*;
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::keys::Keys;
use crate::protocol::{Acquire, Acquired, Look, Mode, Renew, Renewed, Withdraw};
use crate::time::server_time::Ticket;
use crate::types::status::Kind;

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<String>>);

impl Listener for Recorder {
    fn pushed(&self, _: ServerId, channel: &str, message: &str) {
        self.0.lock().unwrap().push(format!("{channel} {message}"));
    }

    fn replaced(&self, _: ServerId) {}

    fn reconnected(&self, _: ServerId) {}
}

/// A client of a store, and the messages that it receives.
struct Peer {
    id: ClientId,
    recorder: Arc<Recorder>,
    connection: Arc<Connection>,
}

impl Peer {
    fn of(store: &MemoryStore, n: u128) -> Peer {
        let recorder = Arc::new(Recorder::default());
        let listener: Weak<dyn Listener> = Arc::downgrade(&(recorder.clone() as Arc<dyn Listener>));
        Peer {
            id: ClientId::from_number(n),
            connection: store.connect(listener),
            recorder,
        }
    }

    fn request(&self, n: u64) -> RequestId {
        RequestId::new(&self.id, Duration::from_secs(5), n, None)
    }

    fn acquire(&self, n: u64) -> Answer<Acquired> {
        self.acquire_of(keys(), n)
    }

    fn acquire_of(&self, keys: Arc<Keys>, n: u64) -> Answer<Acquired> {
        let call = Acquire {
            keys,
            request: self.request(n),
            mode: Mode::Ask,
            lease: Duration::from_secs(30),
            not_after: Arc::new(ServerTime::MAX),
            ticket: None,
            floor: None,
        };
        now(self.connection.call(call)).unwrap()
    }

    fn withdraw(&self, n: u64) {
        let call = Withdraw {
            keys: keys(),
            requests: vec![self.request(n)],
            floor: None,
        };
        now(self.connection.call(call)).unwrap();
    }

    fn subscribe(&self) {
        now(self.connection.subscribe(keys().channel_of(&self.id))).unwrap();
    }

    fn heard(&self) -> usize {
        self.recorder.0.lock().unwrap().len()
    }
}

fn keys() -> Arc<Keys> {
    Arc::new(Keys::new("fairlock", "orders:42").unwrap())
}

/// The result of a future that is ready at its first poll.
fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("a store in memory never waits")
}

fn granted(answer: &Answer<Acquired>) -> Option<u64> {
    match &answer.reply {
        Acquired::Granted { grant, .. } => Some(grant.fence.get()),
        _ => None,
    }
}

#[test]
fn clients_of_one_store_share_its_locks_and_one_is_told() {
    let store = MemoryStore::new();
    let [a, b, c] = [1, 2, 3].map(|n| Peer::of(&store.clone(), n));
    assert!(granted(&a.acquire(1)).is_some());
    for peer in [&b, &c] {
        assert_eq!(granted(&peer.acquire(1)), None);
        peer.subscribe();
        peer.subscribe();
    }
    a.withdraw(1);
    assert_eq!([a.heard(), b.heard(), c.heard()], [0, 1, 0]);
    b.withdraw(1);
    assert_eq!([b.heard(), c.heard()], [1, 1]);
    assert!(granted(&c.acquire(1)).is_some());
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_instant_are_queued_in_their_order() {
    let store = MemoryStore::new();
    let [a, b] = [1, 2].map(|n| Peer::of(&store, n));
    a.acquire(1);
    // The request ids are in reverse order.
    let mut last = None;
    for n in [9, 5, 1] {
        let Acquired::Contended(contended) = b.acquire(n).reply else {
            panic!("it is held");
        };
        assert!(contended.ticket > last, "{contended:?}");
        last = contended.ticket;
    }
}

#[test]
fn unreachable_clients_are_passed_over() {
    let store = MemoryStore::new();
    let [a, b, mut c, d] = [1, 2, 3, 4].map(|n| Peer::of(&store, n));
    a.acquire(1);
    for peer in [&b, &c, &d] {
        peer.acquire(1);
        peer.subscribe();
    }
    // One client drops its connection. Another one drops only its listener.
    drop(b);
    c.recorder = Arc::default();
    a.withdraw(1);
    assert_eq!(d.heard(), 1);
}

#[test]
fn a_closed_client_is_told_so_and_hears_no_more() {
    let store = MemoryStore::new();
    let [a, b] = [1, 2].map(|n| Peer::of(&store, n));
    a.acquire(1);
    b.acquire(1);
    b.subscribe();
    b.connection.close();
    let channel = keys().channel_of(&b.id);
    assert!(matches!(now(b.connection.time()), Err(Failure::Closed)));
    assert!(matches!(
        now(b.connection.subscribe(channel)),
        Err(Failure::Closed)
    ));
    a.withdraw(1);
    assert_eq!(b.heard(), 0);
}

#[tokio::test(start_paused = true)]
async fn time_is_tokios_and_fences_increase_while_it_stands_still() {
    let store = MemoryStore::new();
    let a = Peer::of(&store, 1);
    let (first, second) = (a.acquire(1), a.acquire(2));
    assert_eq!(first.at.now, second.at.now);
    a.withdraw(1);
    let third = a.acquire(2);
    assert!(granted(&third) > granted(&first));
    tokio::time::advance(Duration::from_secs(31)).await;
    let b = Peer::of(&store, 2);
    let fourth = b.acquire(1);
    assert_eq!(fourth.at.now.since(third.at.now), Duration::from_secs(31));
    assert_eq!(fourth.at.sent.since(third.at.received), Duration::from_secs(31));
    assert!(granted(&fourth) > granted(&third));
}

#[test]
fn floor_of_more_than_a_day_ahead_is_refused() {
    let store = MemoryStore::new();
    let a = Peer::of(&store, 1);
    let now_us = 1_000 * now(a.connection.time()).unwrap().at.now.ms();
    let withdraw = |days: u64| {
        let call = Withdraw {
            keys: keys(),
            requests: vec![a.request(1)],
            floor: Fence::new(now_us + days * 86_400_000_000),
        };
        now(a.connection.call(call))
    };
    let refused = withdraw(2);
    assert!(matches!(refused, Err(Failure::Refused(_))), "{refused:?}");
    withdraw(1).unwrap();

    let fence = Fence::new(granted(&a.acquire(1)).unwrap()).unwrap();
    let look = |floor| {
        let renew = Renew {
            keys: keys(),
            request: a.request(1),
            fence,
            lease: Duration::from_secs(30),
            cap: ServerTime::MAX,
            on_demand: false,
        };
        let ticket = Ticket(now_us);
        now(a.connection.call(Look { renew, floor, ticket }))
    };
    let refused = look(Fence::new(fence.get() + 2 * 86_400_000_000).unwrap());
    assert!(matches!(refused, Err(Failure::Refused(_))), "{refused:?}");
    let raised = Fence::new(fence.get() + 1).unwrap();
    let looked = look(raised).unwrap().reply;
    assert!(matches!(looked.renewed, Renewed::Until(_)), "{looked:?}");
    assert_eq!((looked.fence, looked.earlier), (raised, false));
}

#[tokio::test(start_paused = true)]
async fn store_in_use_drops_expired_locks() {
    let store = MemoryStore::new();
    let a = Peer::of(&store, 1);
    for n in 0..3000 {
        let keys = Keys::new("fairlock", &format!("orders:{n}")).unwrap();
        a.acquire_of(Arc::new(keys), n);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let kept = store.0.state().rules.locks.len();
    assert!(kept < 2000, "{kept}");
}

#[test]
fn a_list_has_the_names_of_all_kinds_under_its_prefix() {
    let store = MemoryStore::new();
    let a = Peer::of(&store, 1);
    let kinds = [Kind::Lock, Kind::Semaphore, Kind::ReadWrite];
    let mut listed = Vec::new();
    for prefix in ["other", "fairlock"] {
        listed.clear();
        for kind in kinds {
            let keys = Arc::new(Keys::of_kind(kind, prefix, "orders:42").unwrap());
            a.acquire_of(keys.clone(), 1);
            listed.push(keys.lock.clone());
        }
    }
    let mut page = now(a.connection.list("fairlock", Position::default())).unwrap();
    page.keys.sort();
    listed.sort();
    assert_eq!(page.keys, listed);
}

#[test]
fn listener_may_call_the_store_during_a_push() {
    #[derive(Debug)]
    struct Caller(Mutex<Option<Arc<Connection>>>);
    impl Listener for Caller {
        fn pushed(&self, _: ServerId, _: &str, _: &str) {
            if let Some(connection) = self.0.lock().unwrap().take() {
                now(connection.time()).unwrap();
            }
        }

        fn replaced(&self, _: ServerId) {}

        fn reconnected(&self, _: ServerId) {}
    }
    let store = MemoryStore::new();
    let a = Peer::of(&store, 1);
    let b = Peer::of(&store, 2);
    a.acquire(1);
    b.acquire(1);
    let caller = Arc::new(Caller(Mutex::default()));
    let listener: Weak<dyn Listener> = Arc::downgrade(&(caller.clone() as Arc<dyn Listener>));
    let connection = store.connect(listener);
    now(connection.subscribe(keys().channel_of(&b.id))).unwrap();
    *caller.0.lock().unwrap() = Some(connection);
    a.withdraw(1);
    assert!(caller.0.lock().unwrap().is_none());
}
