//! Tests of a cluster's client while its servers change.

use std::net::TcpListener;
use std::task::{Context, Poll, Waker};

use fairlock_testkit::{Server, free_port};
use tokio::time::advance;

use super::super::slot::SLOTS;
use super::super::tests::{OPTIONS, Recorder, until};
use super::discovery::discover;
use super::slots::{Range, View};
use super::*;
use crate::protocol::script::{self, PubSubMode};
use crate::servers::redis::address::Node;
use crate::servers::redis::cluster::servers::Cluster;

const CHANNEL: &str = "fairlock:unlock:{a}:c";

/// A cluster without shard channels, in which no server is known to have a slot.
fn cluster(seeds: &str, listener: &Arc<Recorder>) -> Arc<Cluster> {
    let listener: Weak<Recorder> = Arc::downgrade(listener);
    let url = format!("redis-cluster://{seeds}");
    Arc::new(Cluster {
        connector: Connector::new(&url, None, OPTIONS.attempt_timeout).unwrap(),
        options: OPTIONS,
        listener,
        table: Mutex::new(Table::new(3 * OPTIONS.ping_every)),
        stale: Notify::new(),
        learnt: Notify::new(),
        held_back: Arc::default(),
        runtime: Handle::current(),
        closed: AtomicBool::new(false),
    })
}

fn at(port: u16) -> Node {
    Node {
        host: "127.0.0.1".to_owned(),
        port,
    }
}

#[tokio::test]
async fn subscription_leaves_the_former_node_of_a_moved_slot() {
    let (former, owner) = (Server::start().await, Server::start().await);
    let recorder = Arc::new(Recorder::default());
    let cluster = cluster(&format!("127.0.0.1:{}", former.port()), &recorder);
    let has = |server: &Server| cluster.table().set_owner(slot_of(CHANNEL), &at(server.port()));
    let channel: Arc<str> = CHANNEL.into();
    cluster.table().listen(&channel);
    has(&former);
    let mut subscribing = Box::pin(Arc::clone(&cluster).subscribe(channel));
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(subscribing.as_mut().poll(&mut context), Poll::Pending));
    has(&owner);
    subscribing.await.unwrap();
    let listeners = |server: &Server| server.tell(&format!("PUBSUB NUMSUB {CHANNEL}"));
    assert_eq!(listeners(&owner), format!("{CHANNEL} 1"));
    until("unsubscribed", || listeners(&former) == format!("{CHANNEL} 0")).await;
}

#[tokio::test]
async fn dropped_store_ends_its_connections() {
    let server = Server::start().await;
    let recorder = Arc::new(Recorder::default());
    let cluster = cluster(&format!("127.0.0.1:{}", server.port()), &recorder);
    cluster.table().set_owner(slot_of(CHANNEL), &at(server.port()));
    let watch = tokio::spawn(watch::watch(Arc::clone(&cluster))).abort_handle();
    let store = ClusterStore { cluster, watch };
    store.subscribe(CHANNEL.into()).await.unwrap();
    drop(store);
    let listeners = || server.tell(&format!("PUBSUB NUMSUB {CHANNEL}"));
    until("closed", || listeners() == format!("{CHANNEL} 0")).await;
}

/// The view of a server in which one master with a replica has all slots.
fn view(of: Node, master: Node, replica: Node) -> View {
    let range = Range {
        first: 0,
        last: SLOTS - 1,
        servers: vec![master, replica],
    };
    View {
        of,
        ranges: vec![range],
    }
}

#[tokio::test]
async fn configured_nodes_are_asked_first_and_then_those_of_the_last_view_alone() {
    let cluster = cluster("127.0.0.1:1?node=127.0.0.1:2", &Arc::default());
    for port in 3..30 {
        let view = view(at(1), at(port), at(2));
        cluster.table().apply(&view);
    }
    cluster.table().set_owner(7, &at(30));
    let ports: Vec<_> = cluster.others().iter().map(|node| node.port).collect();
    assert_eq!(ports, [1, 2, 30, 29]);
}

/// Accepts connections, and answers nothing.
fn silent() -> (TcpListener, Node) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, at(port))
}

#[tokio::test]
async fn silent_address_does_not_delay_the_first_contact() {
    let servers = fairlock_testkit::Cluster::of_masters(1).await;
    let (_listener, silent) = silent();
    let url = format!(
        "redis-cluster://{silent}?node=127.0.0.1:{}",
        servers.servers[0].port()
    );
    let connector = Connector::new(&url, None, OPTIONS.attempt_timeout).unwrap();
    let began = Instant::now();
    let (_, view) = discover(&connector).await.unwrap();
    assert_eq!(view.ranges.len(), 1);
    assert!(began.elapsed() < OPTIONS.attempt_timeout / 2);
}

/// Race: A server is back while the client waits for the answers of addresses that are silent.
#[tokio::test]
async fn server_that_is_back_is_found_at_once_though_other_addresses_are_silent() {
    let servers = fairlock_testkit::Cluster::of_masters(1).await;
    let server = &servers.servers[0];
    let here = at(server.port());
    let cluster = cluster(&here.to_string(), &Arc::default());
    let silent: Vec<_> = (0..2).map(|_| silent()).collect();
    let view = view(here.clone(), silent[0].1.clone(), silent[1].1.clone());
    cluster.table().apply(&view);
    server.kill();
    let watch = tokio::spawn(watch::watch(Arc::clone(&cluster)));
    cluster.stale.notify_one();
    // By now the client waits for the silent addresses.
    sleep(OPTIONS.attempt_timeout / 5).await;
    server.restart().await;
    let began = Instant::now();
    until("the server is found", || {
        let table = cluster.table();
        table.owner(7).is_some_and(|owner| *table.address(owner) == here)
    })
    .await;
    assert!(began.elapsed() < OPTIONS.attempt_timeout / 2);
    watch.abort();
}

/// The id of the subscriber connection.
fn subscriber_of(server: &Server) -> Option<String> {
    let list = server.tell("CLIENT LIST TYPE pubsub");
    list.split(' ').next().map(str::to_owned)
}

/// Race: A slot has moved, and a subscription that ended with that is ended by the client.
#[tokio::test]
async fn end_of_a_subscription_whose_slot_has_moved_costs_no_other_one() {
    let servers = fairlock_testkit::Cluster::of_masters(2).await;
    let server = &servers.servers[0];
    if server.command(&["PUBSUB", "SHARDCHANNELS"]).await.is_error() {
        // Servers before 7.0 have no channels that move with their slots.
        return;
    }
    let recorder = Arc::new(Recorder::default());
    let listener: Weak<Recorder> = Arc::downgrade(&recorder);
    let listener: Weak<dyn Listener> = listener;
    let seeds = cluster(&format!("127.0.0.1:{}", server.port()), &recorder);
    let connector = seeds.connector.at(&at(server.port()));
    let place = (ServerId(0), PubSubMode::Sharded);
    let store = RedisStore::open(connector, OPTIONS, &listener, place, &script::ALL);
    let mut channels = (0..).map(|n| Arc::<str>::from(format!("fairlock:unlock:{{{n}}}:c")));
    let mut next = || channels.find(|channel| slot_of(channel) < SLOTS / 2).unwrap();
    let [moved, ended, also_moved, kept, later] = [(); 5].map(|()| next());
    for channel in [&moved, &ended, &also_moved, &kept] {
        store.subscribe(Arc::clone(channel)).await.unwrap();
    }
    let before = subscriber_of(server);
    for channel in [&moved, &also_moved] {
        servers.migrate(slot_of(channel), 0, 1, Duration::ZERO).await;
    }
    for channel in [&moved, &ended, &also_moved] {
        store.unsubscribe(channel);
    }
    // This follows behind them.
    store.subscribe(Arc::clone(&later)).await.unwrap();
    let listening = server.tell("PUBSUB SHARDCHANNELS");
    let mut listening: Vec<_> = listening.split_whitespace().collect();
    listening.sort_unstable();
    let mut expected = [&*kept, &*later];
    expected.sort_unstable();
    assert_eq!(listening, expected);
    assert_eq!(subscriber_of(server), before, "the connection was replaced");
    assert_eq!(recorder.reconnects(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_slots_is_kept_while_its_client_is_opened() {
    let cluster = cluster("127.0.0.1:1", &Arc::default());
    // A slot moves there, as the answer to a call said.
    let importing = cluster.server(&at(free_port())).unwrap();
    let retire = || cluster.table().retire(OPTIONS.attempt_timeout);
    assert!(retire().is_empty());
    advance(OPTIONS.attempt_timeout).await;
    assert!(!importing.is_up(), "nothing listens there");
    assert!(retire().is_empty(), "there is time for a second attempt");
    advance(OPTIONS.attempt_timeout).await;
    assert_eq!(retire().len(), 1);
}

/// Race: A subscription reaches a server that has just given up the slot.
#[tokio::test]
async fn channel_of_a_slot_that_is_unserved_costs_the_other_channels_nothing() {
    let servers = fairlock_testkit::Cluster::of_masters(1).await;
    let server = &servers.servers[0];
    if server.command(&["PUBSUB", "SHARDCHANNELS"]).await.is_error() {
        // Servers before 7.0 have no channels that belong to slots.
        return;
    }
    server.tell("CONFIG SET cluster-require-full-coverage no");
    let options = quiet();
    let (store, recorder) = store_of(&servers, options).await;
    let other: Arc<str> = "fairlock:unlock:{b}:c".into();
    store.subscribe(Arc::clone(&other)).await.unwrap();
    let before = subscriber_of(server);
    let slot = slot_of(CHANNEL);
    server.tell(&format!("CLUSTER DELSLOTS {slot}"));
    let began = Instant::now();
    store.subscribe(CHANNEL.into()).await.unwrap_err();
    assert!(
        began.elapsed() < options.attempt_timeout / 2,
        "the failure is told"
    );
    store.subscribe(CHANNEL.into()).await.unwrap_err();
    let listening = server.tell(&format!("PUBSUB SHARDNUMSUB {other}"));
    assert_eq!(listening, format!("{other} 1"));
    assert_eq!(recorder.reconnects(), 0);
    server.tell(&format!("CLUSTER ADDSLOTS {slot}"));
    store.subscribe(CHANNEL.into()).await.unwrap();
    assert_eq!(subscriber_of(server), before, "the connection was lost");
}

/// Race: A slot leaves a server, and its waiters hear of no hand-over before the client asks for the owners.
#[tokio::test]
async fn a_subscription_that_the_server_ends_is_noticed_at_once() {
    let servers = fairlock_testkit::Cluster::of_masters(1).await;
    let server = &servers.servers[0];
    if server.command(&["PUBSUB", "SHARDCHANNELS"]).await.is_error() {
        // Servers before 7.0 have no channels that belong to slots.
        return;
    }
    server.tell("CONFIG SET cluster-require-full-coverage no");
    let (store, recorder) = store_of(&servers, quiet()).await;
    store.subscribe(CHANNEL.into()).await.unwrap();
    let slot = slot_of(CHANNEL);
    server.tell(&format!("CLUSTER DELSLOTS {slot}"));
    server.tell(&format!("CLUSTER ADDSLOTS {slot}"));
    // All waiters ask again, because messages may have been lost.
    until("told", || recorder.reconnects() == 1).await;
    until("subscribed again", || {
        server
            .tell(&format!("PUBSUB SHARDNUMSUB {CHANNEL}"))
            .ends_with(" 1")
    })
    .await;
}

/// The options of a client that does not ask for the owners of the slots without a reason.
fn quiet() -> Options {
    Options {
        ping_every: 1000 * OPTIONS.ping_every,
        ..OPTIONS
    }
}

/// A store of this cluster.
async fn store_of(
    servers: &fairlock_testkit::Cluster,
    options: Options,
) -> (Arc<ClusterStore>, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let listener: Weak<Recorder> = Arc::downgrade(&recorder);
    let connector = Connector::new(&servers.url(), None, options.attempt_timeout).unwrap();
    let store = ClusterStore::open(connector, options, listener);
    store.time().await.unwrap();
    (store, recorder)
}

/// Race: A slot is without an owner for so short that no call about its locks meets that.
#[tokio::test]
async fn channel_is_subscribed_again_once_its_slot_is_served_again() {
    let servers = fairlock_testkit::Cluster::of_masters(1).await;
    let server = &servers.servers[0];
    if server.command(&["PUBSUB", "SHARDCHANNELS"]).await.is_error() {
        return;
    }
    let (store, recorder) = store_of(&servers, OPTIONS).await;
    let slot = slot_of(CHANNEL);
    let listening = || server.tell(&format!("PUBSUB SHARDNUMSUB {CHANNEL}"));
    store.subscribe(CHANNEL.into()).await.unwrap();
    let before = subscriber_of(server);
    server.tell(&format!("CLUSTER DELSLOTS {slot}"));
    until("the subscription has ended", || {
        listening() == format!("{CHANNEL} 0")
    })
    .await;
    sleep(OPTIONS.ping_every).await;
    assert_eq!(recorder.reconnects(), 0);
    server.tell(&format!("CLUSTER ADDSLOTS {slot}"));
    until("subscribed again", || listening() == format!("{CHANNEL} 1")).await;
    until("all who wait ask again", || recorder.reconnects() == 1).await;
    assert_eq!(subscriber_of(server), before, "the connection was replaced");
}
