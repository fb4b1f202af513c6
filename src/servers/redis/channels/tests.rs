//! Tests of the channels of a client, at a server that the test plays.

use super::super::connection::Connection;
use super::super::connection::tests::{Peer, push, telling};
use super::super::tests::until;
use super::*;

/// What the listener has heard.
#[derive(Debug, Default)]
struct Heard(Mutex<Vec<String>>);

impl Heard {
    fn add(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Listener for Heard {
    fn pushed(&self, _: ServerId, channel: &str, message: &str) {
        self.add(format!("{channel} says {message}"));
    }

    fn left(&self, _: ServerId, channel: &str) {
        self.add(format!("{channel} has left"));
    }

    fn replaced(&self, _: ServerId) {}

    fn reconnected(&self, _: ServerId) {
        self.add("reconnected");
    }
}

/// The channels of a shard, over a sequence of connections.
struct Client {
    channels: Arc<Channels>,
    heard: Arc<Heard>,
    connection: Connection,
    peer: Peer,
}

impl Client {
    /// A client on its first connection.
    fn start() -> Client {
        let heard = Arc::new(Heard::default());
        let weak: Weak<Heard> = Arc::downgrade(&heard);
        let channels = Channels::new(ServerId::default(), "here", true, weak);
        let (connection, peer) = telling(Arc::clone(&channels) as _);
        channels.open(connection.line(), true);
        channels.opened();
        Client {
            channels,
            heard,
            connection,
            peer,
        }
    }

    /// A client that listens to these channels.
    async fn listening(names: &[&str]) -> Client {
        let mut client = Client::start();
        for name in names {
            let subscribed = client.subscribe(name);
            client.peer.hears(&[&["SSUBSCRIBE", name]]).await;
            client.confirms(name).await;
            subscribed.await.unwrap().unwrap();
        }
        client
    }

    fn subscribe(&self, name: &str) -> oneshot::Receiver<Result<(), Failure>> {
        self.channels.subscribe(&name.into()).unwrap()
    }

    async fn confirms(&mut self, name: &str) {
        self.peer.says(&push(&["ssubscribe", name, "1"])).await;
    }

    fn loses_its_connection(&mut self) {
        self.channels.lost();
        (self.connection, self.peer) = telling(Arc::clone(&self.channels) as _);
    }

    fn has_a_connection_again(&mut self) {
        self.channels.open(self.connection.line(), false);
        self.channels.opened();
    }

    /// Waits until the client has taken in all that the server has said. It sends no other command before
    /// that.
    async fn settle(&mut self) {
        let pong = self.connection.line().ask(&["PING"]);
        self.peer.hears(&[&["PING"]]).await;
        self.peer.says("+PONG\r\n").await;
        pong.await.unwrap();
    }
}

/// Race: The channel is subscribed once for each waiter, or a second waiter is never told.
#[tokio::test]
async fn a_channel_is_subscribed_once_and_all_who_ask_are_told() {
    let mut client = Client::start();
    let waiters = [(); 2].map(|()| client.subscribe("a"));
    client.peer.hears(&[&["SSUBSCRIBE", "a"]]).await;
    client.confirms("a").await;
    client.settle().await;
    for mut waiter in waiters.into_iter().chain([client.subscribe("a")]) {
        waiter.try_recv().expect("it is confirmed").unwrap();
    }
    client.settle().await;
    assert!(client.heard.all().is_empty());
}

#[tokio::test]
async fn waiters_that_are_gone_are_forgotten() {
    let client = Client::start();
    for _ in 0..100 {
        drop(client.subscribe("a"));
    }
    let state = locked(&client.channels.state);
    assert!(state.channels["a"].waiters.len() < 2);
}

#[tokio::test]
async fn the_listener_hears_once_that_each_channel_is_back_or_not_wanted() {
    let mut client = Client::listening(&["a", "b", "c"]).await;
    client.loses_its_connection();
    client.has_a_connection_again();
    let mut asked = Vec::new();
    for _ in 0..3 {
        asked.push(client.peer.command().await.remove(1));
    }
    // This one is given up, and counts once.
    client.channels.unsubscribe(&asked[1]);
    client.channels.unsubscribe(&asked[1]);
    client
        .peer
        .hears(&[&["SUNSUBSCRIBE", &asked[1]], &["HELLO"]])
        .await;
    client.confirms(&asked[0]).await;
    client.confirms(&asked[1]).await;
    client.peer.says(&push(&["smessage", "a", "mark"])).await;
    client.confirms(&asked[2]).await;
    client.peer.says(&push(&["sunsubscribe", &asked[1], "2"])).await;
    client.peer.says("*0\r\n").await;
    client.settle().await;
    assert_eq!(client.heard.all(), ["a says mark", "reconnected"]);

    client.loses_its_connection();
    client.has_a_connection_again();
    for _ in 0..2 {
        assert_eq!(client.heard.all().len(), 2);
        let name = client.peer.command().await.remove(1);
        client.confirms(&name).await;
    }
    client.settle().await;
    assert_eq!(client.heard.all()[2..], ["reconnected"]);
}

#[tokio::test]
async fn a_new_connection_without_channels_is_told_too() {
    let mut client = Client::start();
    client.loses_its_connection();
    assert!(client.heard.all().is_empty());
    client.has_a_connection_again();
    assert_eq!(client.heard.all(), ["reconnected"]);
}

/// Race: A connection is lost before all is subscribed on it, and the last channel is given up then.
#[tokio::test]
async fn nothing_is_told_while_there_is_no_connection() {
    let mut client = Client::listening(&["a"]).await;
    client.loses_its_connection();
    client.has_a_connection_again();
    client.loses_its_connection();
    client.channels.unsubscribe("a");
    assert!(client.heard.all().is_empty());
    client.has_a_connection_again();
    client.settle().await;
    assert_eq!(client.heard.all(), ["reconnected"]);
}

#[tokio::test]
async fn no_channel_counts_as_confirmed_on_a_connection_that_is_lost() {
    let mut client = Client::listening(&["a"]).await;
    client.loses_its_connection();
    let mut again = client.subscribe("a");
    assert!(again.try_recv().is_err());
    client.has_a_connection_again();
    client.peer.hears(&[&["SSUBSCRIBE", "a"]]).await;
    assert!(again.try_recv().is_err());
    client.confirms("a").await;
    again.await.unwrap().unwrap();
    client.settle().await;
}

/// Race: A server is busy when its connection is replaced, and a client with a subscription has none.
#[tokio::test]
async fn a_busy_server_is_asked_again_for_a_channel_of_an_earlier_connection() {
    let mut client = Client::listening(&["a"]).await;
    client.loses_its_connection();
    client.has_a_connection_again();
    for _ in 0..2 {
        client.peer.hears(&[&["SSUBSCRIBE", "a"]]).await;
        client
            .peer
            .says("-BUSY Redis is busy running a script.\r\n")
            .await;
    }
    client.peer.hears(&[&["SSUBSCRIBE", "a"]]).await;
    assert!(client.heard.all().is_empty());
    client.confirms("a").await;
    client.settle().await;
    assert_eq!(client.heard.all(), ["reconnected"]);
}

#[tokio::test]
async fn a_caller_is_told_that_the_server_is_busy() {
    let mut client = Client::start();
    let subscribing = client.subscribe("a");
    client
        .peer
        .says("-BUSY Redis is busy running a script.\r\n")
        .await;
    let told = subscribing.await.unwrap();
    assert!(matches!(told, Err(Failure::NotExecuted(_))), "{told:?}");
    // The next caller asks again.
    let _again = client.subscribe("a");
    client
        .peer
        .hears(&[&["SSUBSCRIBE", "a"], &["SSUBSCRIBE", "a"]])
        .await;
}

/// Race: A slot has moved when the connection is replaced, and its channel keeps all others from being told.
#[tokio::test]
async fn a_channel_that_cannot_come_back_is_not_waited_for() {
    for (said, told) in [
        ("MOVED 1 127.0.0.1:1", &["reconnected"][..]),
        ("NOPERM No permissions to access a channel", &["reconnected"]),
        ("CLUSTERDOWN Hash slot not served", &["reconnected", "a has left"]),
    ] {
        let mut client = Client::listening(&["a"]).await;
        client.loses_its_connection();
        client.has_a_connection_again();
        client.peer.hears(&[&["SSUBSCRIBE", "a"]]).await;
        client.peer.says(&format!("-{said}\r\n")).await;
        client.settle().await;
        assert_eq!(client.heard.all(), told);
        sleep(2 * PAUSE).await;
        // It is not asked for again.
        client.settle().await;
    }
}

#[tokio::test]
async fn a_channel_that_was_given_up_is_not_asked_for_again() {
    let mut client = Client::listening(&["a"]).await;
    client.loses_its_connection();
    client.has_a_connection_again();
    client.peer.hears(&[&["SSUBSCRIBE", "a"]]).await;
    client
        .peer
        .says("-BUSY Redis is busy running a script.\r\n")
        .await;
    client.settle().await;
    client.channels.unsubscribe("a");
    client.peer.hears(&[&["SUNSUBSCRIBE", "a"], &["HELLO"]]).await;
    client
        .peer
        .says("-BUSY Redis is busy running a script.\r\n*0\r\n")
        .await;
    sleep(2 * PAUSE).await;
    client.settle().await;
    assert_eq!(client.heard.all(), ["reconnected"]);
}

/// Race: A slot leaves a server, which tells that of a channel that the client has begun to subscribe again.
#[tokio::test]
async fn only_the_end_of_a_subscription_that_the_client_wants_is_told() {
    let mut client = Client::listening(&["a"]).await;
    let ended = push(&["sunsubscribe", "a", "0"]);
    client.peer.says(&ended).await;
    client.settle().await;
    assert_eq!(client.heard.all(), ["a has left"]);
    // It is not subscribed any more.
    let again = client.subscribe("a");
    client.peer.hears(&[&["SSUBSCRIBE", "a"]]).await;
    client.confirms("a").await;
    again.await.unwrap().unwrap();

    client.channels.unsubscribe("a");
    let again = client.subscribe("a");
    client
        .peer
        .hears(&[&["SUNSUBSCRIBE", "a"], &["HELLO"], &["SSUBSCRIBE", "a"]])
        .await;
    client.peer.says(&format!("{ended}{ended}*0\r\n")).await;
    client.confirms("a").await;
    again.await.unwrap().unwrap();
    assert_eq!(client.heard.all(), ["a has left"]);
}

/// Race: A channel is given up before it is subscribed, and wanted again at once.
#[tokio::test]
async fn a_channel_that_was_given_up_and_is_wanted_again_is_confirmed_by_its_own_answer() {
    let ended = push(&["sunsubscribe", "a", "0"]);
    let confirmed = push(&["ssubscribe", "a", "1"]);
    let busy = "-BUSY Redis is busy running a script.\r\n".to_owned();
    for answers in [confirmed.clone() + &ended, busy.repeat(2)] {
        let mut client = Client::start();
        let given_up = client.subscribe("a");
        client.channels.unsubscribe("a");
        let mut wanted = client.subscribe("a");
        client
            .peer
            .hears(&[
                &["SSUBSCRIBE", "a"],
                &["SUNSUBSCRIBE", "a"],
                &["HELLO"],
                &["SSUBSCRIBE", "a"],
            ])
            .await;
        assert!(given_up.await.is_err());
        client
            .peer
            .says(&format!("{answers}*0\r\n{}", push(&["smessage", "b", "mark"])))
            .await;
        until("the mark", || !client.heard.all().is_empty()).await;
        assert!(wanted.try_recv().is_err());
        client.confirms("a").await;
        client.settle().await;
        wanted.try_recv().unwrap().unwrap();
        assert_eq!(client.heard.all(), ["b says mark"]);
        // It is known, so a new connection has it too.
        client.loses_its_connection();
        client.has_a_connection_again();
        client.peer.hears(&[&["SSUBSCRIBE", "a"]]).await;
    }
}
