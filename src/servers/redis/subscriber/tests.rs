//! Tests of the subscriber with failing connections and servers.

use std::fmt;
use std::sync::Mutex;

use fairlock_testkit::{Server, free_port};
use tokio::time::{sleep, timeout};

use super::super::call::pipeline;
use super::super::tests::flawed::{Flaw, flawed};
use super::super::tests::{OPTIONS, Recorder, until};
use super::channels::Status;
use super::*;

const CHANNEL: &str = "fairlock:unlock:{a}:c";

/// Counts the subscribers of the channel when it hears of a reconnect.
struct Witness {
    server: Server,
    listeners: Mutex<Option<String>>,
}

impl Listener for Witness {
    fn pushed(&self, _: ServerId, _: &str, _: &str) {}

    fn replaced(&self, _: ServerId) {}

    fn reconnected(&self, _: ServerId) {
        let listeners = self.server.tell(&format!("PUBSUB NUMSUB {CHANNEL}"));
        *self.listeners.lock().unwrap() = Some(listeners);
    }
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Witness")
    }
}

fn subscriber(url: &str, sharded: bool) -> (Subscriber, mpsc::UnboundedSender<Instruction>) {
    telling(Weak::<Recorder>::new(), url, sharded)
}

fn telling(
    listener: Weak<dyn Listener>,
    url: &str,
    sharded: bool,
) -> (Subscriber, mpsc::UnboundedSender<Instruction>) {
    let connector = Connector::new(url, None, OPTIONS.attempt_timeout).unwrap();
    let ping_every = 3 * OPTIONS.ping_every;
    // Nothing opens this pipeline. The time-out of zero keeps calls from waiting for that.
    let (pipeline, _) = pipeline(ServerId::default(), Duration::ZERO);
    Subscriber::new(
        ServerId::default(),
        sharded,
        Arc::new(connector),
        pipeline,
        listener,
        ping_every,
    )
}

fn subscribe() -> (Instruction, oneshot::Receiver<Result<(), Failure>>) {
    let (waiter, told) = oneshot::channel();
    (Instruction::Subscribe(CHANNEL.into(), waiter), told)
}

#[tokio::test]
async fn requests_are_taken_in_while_there_is_no_connection() {
    let (subscriber, requests) = subscriber(&format!("redis://127.0.0.1:{}", free_port()), false);
    let running = tokio::spawn(subscriber.run());
    let (request, told) = subscribe();
    requests.send(request).unwrap();
    requests.send(Instruction::Unsubscribe(CHANNEL.into())).unwrap();
    assert!(told.await.is_err(), "the channel was unsubscribed meanwhile");
    running.abort();
}

#[tokio::test]
async fn repeatedly_requested_channel_is_subscribed_once() {
    let (mut subscriber, _requests) = subscriber("redis://127.0.0.1", false);
    for _ in 0..3 {
        for _ in 0..3 {
            // The previous caller has lost patience.
            let (request, _) = subscribe();
            assert!(subscriber.take_in(request).is_none());
        }
        assert_eq!(subscriber.channels[CHANNEL].waiters.len(), 1);
        assert!(
            subscriber
                .take_in(Instruction::Unsubscribe(CHANNEL.into()))
                .is_none()
        );
    }
    assert_eq!(subscriber.asked.len(), 1);
    assert!(!subscriber.is_wanted(&CHANNEL.into()));
    assert!(subscriber.channels.is_empty());
}

#[tokio::test]
async fn user_without_the_right_to_ping_is_reconnected_slowly() {
    let server = Server::start().await;
    if server.command(&["PUBSUB", "SHARDNUMSUB"]).await.is_error() {
        println!("skipped: the server has no shard channels");
        return;
    }
    server.tell("ACL SETUSER u on >p ~* &* +@all -ping");
    let url = format!("redis://u:p@127.0.0.1:{}", server.port());
    let (subscriber, requests) = subscriber(&url, true);
    let running = tokio::spawn(subscriber.run());
    let (request, told) = subscribe();
    requests.send(request).unwrap();
    told.await.unwrap().unwrap();
    let connections = || -> u32 {
        let stats = server.tell("INFO stats");
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().trim().parse().unwrap()
    };
    let before = connections();
    sleep(3 * OPTIONS.ping_every).await;
    let made = connections() - before;
    // The attempts come after 0, 20, 40 … ms. One of the connections is that of the measuring itself.
    assert!((2..15).contains(&made), "{made}");
    running.abort();
}

#[tokio::test]
async fn a_reconnect_is_told_once_all_is_subscribed_again() {
    let witness = Arc::new(Witness {
        server: Server::start().await,
        listeners: Mutex::default(),
    });
    let listener: Weak<Witness> = Arc::downgrade(&witness);
    let (subscriber, requests) = telling(listener, &witness.server.url(), false);
    let running = tokio::spawn(subscriber.run());
    let (request, told) = subscribe();
    requests.send(request).unwrap();
    told.await.unwrap().unwrap();
    witness.server.tell("CLIENT KILL TYPE pubsub");
    let listeners = || witness.listeners.lock().unwrap().clone();
    until("told", || listeners().is_some()).await;
    assert_eq!(listeners(), Some(format!("{CHANNEL} 1")));
    running.abort();
}

async fn connection_to(flaw: Flaw) -> Connection {
    let url = format!("redis://127.0.0.1:{}", flawed(flaw));
    let connector = Connector::new(&url, None, 12 * OPTIONS.attempt_timeout).unwrap();
    connector.open().await.unwrap()
}

#[tokio::test]
async fn connection_lost_before_all_was_sent_is_noticed_at_once() {
    let mut connection = connection_to(Flaw::HangsUp).await;
    let channels = [CHANNEL.into()];
    let mut confirmed = pin!(connection.change(Subscribing::Begins, &channels, 7));
    assert!((&mut confirmed).now_or_never().is_none());
    // Both the echo and the end of the connection arrive before the last command is sent.
    sleep(Duration::from_millis(50)).await;
    let noticed = timeout(OPTIONS.attempt_timeout, confirmed).await;
    assert!(noticed.is_ok(), "it still waits for an answer");
}

#[tokio::test]
async fn an_echo_of_another_ping_confirms_nothing() {
    let mut connection = connection_to(Flaw::Desynchronised).await;
    let channels = [CHANNEL.into()];
    let confirmed = connection.change(Subscribing::Begins, &channels, 7);
    let Err(Failure::Unknown(error)) = confirmed.await else {
        panic!("it was confirmed");
    };
    assert!(error.to_string().contains("out of step"), "{error}");
}

#[tokio::test]
async fn a_busy_server_is_asked_again_for_the_channel_of_a_shard() {
    let mut connection = connection_to(Flaw::BusyAtTimes).await;
    let (mut subscriber, _requests) = subscriber("redis://127.0.0.1", true);
    let (request, told) = subscribe();
    subscriber.take_in(request);
    assert!(subscriber.subscribe(&mut connection).await.is_ok());
    told.await.unwrap().unwrap();
    // As after a reconnect.
    let former = subscriber.disown();
    subscriber.todo.push_front(former);
    assert!(
        matches!(subscriber.subscribe(&mut connection).await, Err(Ended::Lost(_))),
        "the server was busy"
    );
    assert!(subscriber.subscribe(&mut connection).await.is_ok());
    assert!(subscriber.channels[CHANNEL].status == Status::Confirmed);
}
