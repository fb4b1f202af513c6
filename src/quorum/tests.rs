//! Quorums of in-memory servers, on paused time.

mod calls;
mod fences;
mod link;
mod overload;
mod reach;
mod turns;
mod worlds;

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use self::link::{Link, State};
use super::{Majority, QuorumClient};
use crate::caller::gate::Gate;
use crate::caller::local_queue::{LocalQueues, TenureParams};
use crate::caller::place::Place;
use crate::caller::place::held::Held;
use crate::engine::acquire::AcquireParams;
use crate::engine::any_hold::{AnyHold, Watched};
use crate::engine::metrics::Group;
use crate::engine::options::{LockOptions, ManagerOptions};
use crate::engine::shared::Shared;
use crate::engine::waitlist::registry::LateListener;
use crate::protocol::ids::ClientId;
use crate::protocol::keys::Keys;
use crate::servers::Store;
use crate::types::error::{Error, HoldEnd};
use crate::types::fence::Fence;
use crate::{LockGuard, LockManager, MemoryStore};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const NEAR: State = State::Up(Duration::ZERO);

/// Independent servers in memory.
struct Servers(Vec<MemoryStore>);

/// A process that uses them.
struct Process {
    quorum: Arc<QuorumClient>,
    queues: Arc<LocalQueues>,
    links: Vec<Arc<Link>>,
}

impl Servers {
    fn new(count: usize) -> Servers {
        Servers((0..count).map(|_| MemoryStore::new()).collect())
    }

    fn process(&self, number: u128) -> Process {
        self.process_with(number, |_| ())
    }

    fn process_with(&self, number: u128, set: impl Fn(&mut ManagerOptions)) -> Process {
        let mut options = ManagerOptions::default();
        set(&mut options);
        let mut links = Vec::new();
        let servers = self.0.iter().map(|server| {
            let late_listener = Arc::new(LateListener::default());
            let link = Arc::new(Link {
                server: Store::Memory(server.connect(Arc::downgrade(&late_listener) as _)),
                state: Mutex::new(NEAR),
                done: Mutex::new(Instant::now()),
                is_connected: watch::Sender::new(true),
                channels: Mutex::default(),
                listener: Arc::clone(&late_listener),
            });
            links.push(Arc::clone(&link));
            let link = Store::Double(link);
            let first = link.time().now_or_never().unwrap().unwrap();
            let id = ClientId::from_number(number);
            let shared = Shared::new(late_listener, id, link, options.clone(), Some(&first), None);
            Arc::new(shared)
        });
        let quorum = Arc::new(QuorumClient::new(servers.collect()));
        quorum.start();
        let gate = Gate::new(Place::Quorum(Arc::clone(&quorum)));
        let queues = Arc::new(LocalQueues::new(gate));
        Process {
            quorum,
            queues,
            links,
        }
    }

    /// Takes the lock on one server alone, this many times. That makes this server's fence larger.
    async fn take_alone(&self, server: usize, times: usize) {
        let locks = LockManager::builder().in_memory(&self.0[server]).unwrap();
        for _ in 0..times {
            locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        }
    }

    /// A hold of one server alone.
    async fn held_alone(&self, server: usize) -> LockGuard {
        let locks = LockManager::builder().in_memory(&self.0[server]).unwrap();
        locks.lock("a").acquire().await.unwrap()
    }

    /// How many requests hold or wait, over all servers.
    async fn left(&self) -> u64 {
        let mut left = 0;
        for server in &self.0 {
            let locks = LockManager::builder().in_memory(server).unwrap();
            let status = locks.lock("a").status().await.unwrap();
            left += u64::from(status.holder.is_some()) + status.waiting;
        }
        left
    }
}

impl Process {
    fn set(&self, server: usize, state: State) {
        self.links[server].set(state);
    }

    async fn acquire(&self) -> Majority {
        acquire(Arc::clone(&self.quorum)).await.unwrap()
    }

    /// The lock, in a task of its own.
    fn waits(&self) -> tokio::task::JoinHandle<Majority> {
        let quorum = Arc::clone(&self.quorum);
        tokio::spawn(async move { acquire(quorum).await.unwrap() })
    }
}

fn params(quorum: &QuorumClient) -> AcquireParams {
    let client = quorum.client();
    let keys = Arc::new(Keys::new("fairlock", "a").unwrap());
    AcquireParams {
        channel: keys.channel_of(&client.id),
        keys,
        terms: LockOptions::default().terms(&client.options).unwrap(),
        owner: None,
        retain_ms: None,
        permits: None,
        group: Group::default(),
        vote: None,
    }
}

fn tenure(quorum: &QuorumClient, turns: u16) -> TenureParams {
    let hold = params(quorum);
    TenureParams { hold, turns }
}

async fn acquire(quorum: Arc<QuorumClient>) -> crate::Result<Majority> {
    acquire_with(&quorum, None).await
}

async fn acquire_with(quorum: &Arc<QuorumClient>, until: Option<Instant>) -> crate::Result<Majority> {
    quorum.acquire(params(quorum), quorum.arrival(), until).await
}

async fn acquire_as(quorum: &Arc<QuorumClient>, params: AcquireParams) -> crate::Result<Majority> {
    quorum.acquire(params, quorum.arrival(), None).await
}

/// The lock through the gate of a process.
async fn acquire_through(queues: &LocalQueues, until: Option<Instant>) -> crate::Result<Majority> {
    let Place::Quorum(quorum) = queues.place() else {
        panic!("a quorum");
    };
    let _permit = quorum.count_caller()?;
    majority(queues.gate().acquire(&params(quorum), until).await?)
}

fn majority(held: Held) -> crate::Result<Majority> {
    match held {
        Held::Majority(majority) => Ok(*majority),
        Held::One(_) => panic!("a quorum"),
    }
}

fn votes(held: &Majority) -> usize {
    held.votes().holds().len()
}

fn fences(held: &Majority) -> Vec<Fence> {
    let holds = held.votes().holds();
    holds.iter().map(|(_, hold)| hold.fence()).collect()
}

#[tokio::test(start_paused = true)]
async fn free_lock_is_taken_on_all_servers_under_one_fence() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    let began = Instant::now();
    let held = process.acquire().await;
    sleep(MS).await;
    assert_eq!(fences(&held), [held.fence; 3]);
    held.release().await.unwrap();
    // The release waits for a majority only.
    sleep(MS).await;
    assert_eq!(servers.left().await, 0);
    assert!(began.elapsed() < SECOND);
}

#[tokio::test(start_paused = true)]
async fn waiter_gets_the_lock_at_its_release_under_a_larger_fence() {
    let servers = Servers::new(3);
    let (first, second) = (servers.process(1), servers.process(2));
    let held = first.acquire().await;
    let fence = held.fence;
    let waiter = second.waits();
    sleep(20 * SECOND).await;
    assert!(!waiter.is_finished());
    held.release().await.unwrap();
    let next = timeout(10 * MS, waiter)
        .await
        .expect("it waits for no timer")
        .unwrap();
    assert!(next.fence > fence);
    next.release().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
}

/// Each of the processes is nearest to another server, so each has one vote at first.
#[tokio::test(start_paused = true)]
async fn split_vote_goes_to_the_earliest_ticket() {
    for count in [3, 5] {
        let servers = Servers::new(count);
        let mut tasks = JoinSet::new();
        let began = Instant::now();
        for n in 0..count {
            let process = servers.process(n as u128 + 1);
            for server in 0..count {
                let way = if server == n { Duration::ZERO } else { 20 * MS };
                process.set(server, State::Up(way));
            }
            tasks.spawn(async move {
                sleep(MS * u32::try_from(n).unwrap()).await;
                let held = process.acquire().await;
                let at = Instant::now();
                sleep(10 * MS).await;
                let released = Instant::now();
                held.release().await.unwrap();
                (n, at, released)
            });
        }
        let mut order = tasks.join_all().await;
        order.sort_by_key(|(_, at, _)| *at);
        let expected: Vec<_> = (0..count).collect();
        assert_eq!(order.iter().map(|(n, ..)| *n).collect::<Vec<_>>(), expected);
        for pair in order.windows(2) {
            assert!(pair[0].2 <= pair[1].1, "{order:?}");
        }
        assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
        sleep(SECOND).await;
        assert_eq!(servers.left().await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn minority_that_hangs_or_is_down_delays_nothing() {
    for state in [State::Hung, State::Down] {
        let servers = Servers::new(3);
        let (first, second) = (servers.process(1), servers.process(2));
        for process in [&first, &second] {
            process.set(1, state);
        }
        let began = Instant::now();
        let held = first.acquire().await;
        let waiter = second.waits();
        sleep(SECOND).await;
        held.release().await.unwrap();
        let next = waiter.await.unwrap();
        assert!(
            began.elapsed() < SECOND + 20 * MS,
            "{state:?}: {:?}",
            began.elapsed()
        );
        next.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn dead_majority_fails_as_no_quorum() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    process.set(0, State::Down);
    process.set(2, State::Hung);
    let began = Instant::now();
    let error = acquire(Arc::clone(&process.quorum)).await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::NoQuorum {
                servers: 3,
                wanted: 2,
                answering: 1,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(began.elapsed() < 15 * SECOND, "{:?}", began.elapsed());
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
}

/// A process that is late finds the answers that queue its requests together with the end of its wait.
#[tokio::test(start_paused = true)]
async fn wait_ends_at_its_bound_though_the_servers_have_just_answered() {
    let servers = Servers::new(3);
    let (first, second) = (servers.process(1), servers.process(2));
    let held = first.acquire().await;
    // By then it has all votes.
    sleep(MS).await;
    for server in 0..3 {
        second.set(server, State::Replies(MS));
    }
    let bound = Instant::now() + 5 * MS;
    let mut waiting = Box::pin(acquire_with(&second.quorum, Some(bound)));
    let polled = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending()));
    assert!(polled.await);
    sleep(10 * MS).await;
    let error = timeout(SECOND, waiting).await.expect("it ends").unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn dropped_wait_leaves_nothing_at_any_poll() {
    for polls in 1..12 {
        let servers = Servers::new(3);
        let (first, second) = (servers.process(1), servers.process(2));
        for (server, ms) in [(0, 1), (1, 2), (2, 5)] {
            second.set(server, State::Up(ms * MS));
        }
        let held = (polls % 2 == 0).then_some(first.acquire().await);
        let mut waiting = Box::pin(acquire(Arc::clone(&second.quorum)));
        for _ in 0..polls {
            let polled = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_ready()));
            if polled.await {
                break;
            }
            sleep(MS).await;
        }
        drop(waiting);
        drop(held);
        sleep(10 * SECOND).await;
        assert_eq!(servers.left().await, 0, "{polls} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_hold_is_released_everywhere() {
    let servers = Servers::new(5);
    let process = servers.process(1);
    drop(process.acquire().await);
    sleep(MS).await;
    assert_eq!(servers.left().await, 0);
}

#[tokio::test(start_paused = true)]
async fn hold_outlives_one_server_after_the_other() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    let held = process.acquire().await;
    for server in 0..3 {
        process.set(server, State::Down);
        sleep(60 * SECOND).await;
        assert_eq!(votes(&held), 2, "without server {server}");
        assert!(held.votes().end_if_over().is_ok());
        process.set(server, NEAR);
        sleep(10 * SECOND).await;
        assert_eq!(votes(&held), 3, "server {server} is back");
    }
    held.release().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
}

/// Race: The votes of a hold are replaced one after the other, so that each lasts for longer than the hold
/// may.
#[tokio::test(start_paused = true)]
async fn hold_whose_votes_are_replaced_ends_at_its_max_hold() {
    let servers = Servers::new(3);
    let (process, other) = (servers.process(1), servers.process(2));
    let mut params = params(&process.quorum);
    params.terms.max_hold = Some(100 * SECOND);
    let held = acquire_as(&process.quorum, params).await.unwrap();
    let began = Instant::now();
    for server in 0..2 {
        process.set(server, State::Down);
        sleep(31 * SECOND).await;
        process.set(server, NEAR);
        sleep(5 * SECOND).await;
        assert_eq!(votes(&held), 3, "server {server} is back");
    }
    let waiter = other.waits();
    let lost = held.votes().lost().await;
    assert_eq!(lost.reason, HoldEnd::MaxHold);
    assert_lasted(began, 100);
    let next = timeout(10 * SECOND, waiter)
        .await
        .expect("the lock is free")
        .unwrap();
    assert!(next.fence > held.fence);
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn hold_lasts_for_its_whole_lease_although_a_vote_is_older() {
    let servers = Servers::new(3);
    let process = servers.process(1);
    process.set(2, State::Down);
    let alone = LockManager::builder().in_memory(&servers.0[1]).unwrap();
    let blocks = alone.lock("a").acquire().await.unwrap();
    let mut params = params(&process.quorum);
    (params.terms.length, params.terms.fixed) = (100 * SECOND, true);
    let quorum = Arc::clone(&process.quorum);
    let waiter = tokio::spawn(async move { acquire_as(&quorum, params).await.unwrap() });
    sleep(20 * SECOND).await;
    blocks.release().await.unwrap();
    let held = waiter.await.unwrap();
    let began = Instant::now();
    let lost = held.votes().lost().await;
    assert_eq!(lost.reason, HoldEnd::Expired);
    assert_lasted(began, 100);
}

/// Local deadlines are a little earlier than those of servers.
#[track_caller]
fn assert_lasted(began: Instant, seconds: u64) {
    let lasted = began.elapsed();
    let most = Duration::from_secs(seconds);
    assert!(lasted <= most + MS && lasted > most - SECOND / 2, "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn holder_without_a_majority_is_told_before_others_get_the_lock() {
    let servers = Servers::new(3);
    let (first, second) = (servers.process(1), servers.process(2));
    let held = first.acquire().await;
    let lost_votes = Arc::clone(held.votes());
    let lost = tokio::spawn(async move { (lost_votes.lost().await, Instant::now()) });
    let waiter = second.waits();
    sleep(SECOND).await;
    first.set(0, State::Hung);
    first.set(1, State::Down);
    let next = waiter.await.unwrap();
    let granted = Instant::now();
    let (reason, told) = lost.await.unwrap();
    assert_eq!(reason.reason, HoldEnd::Expired);
    assert!(told <= granted);
    assert!(next.fence > held.fence);
    assert!(matches!(held.release().await, Err(Error::Lost(_))));
    next.release().await.unwrap();
}

/// The holder comes before all who wait for a server that its hold lacks, since they cannot use its vote.
#[tokio::test(start_paused = true)]
async fn waiter_with_a_vote_in_vain_gives_it_to_the_holder() {
    let servers = Servers::new(3);
    let (first, second) = (servers.process(1), servers.process(2));
    first.set(2, State::Down);
    let held = first.acquire().await;
    let waiter = second.waits();
    sleep(SECOND / 2).await;
    first.set(2, NEAR);
    sleep(10 * SECOND).await;
    assert_eq!(votes(&held), 3);
    assert!(!waiter.is_finished());
    held.release().await.unwrap();
    let next = timeout(50 * MS, waiter)
        .await
        .expect("a release wakes it")
        .unwrap();
    next.release().await.unwrap();
    sleep(SECOND).await;
    assert_eq!(servers.left().await, 0);
}
