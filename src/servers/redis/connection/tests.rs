//! Tests of a connection to a server that the test plays.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter, DuplexStream, duplex};

use super::*;

/// What a call may take that waits for nothing, even on a busy machine.
const BOUND: Duration = Duration::from_secs(5);
/// More than is written in any of these tests.
const ROOM: usize = 1 << 16;

/// What a connection has told of its channels.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Told {
    fn add(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Messages for Told {
    fn message(&self, channel: &str, text: &str) {
        self.add(format!("{channel} says {text}"));
    }

    fn subscribed(&self, channel: &str, _: u64) {
        self.add(format!("{channel} is subscribed"));
    }

    fn not_subscribed(&self, channel: &Arc<str>, _: u64, said: &str) {
        self.add(format!("{channel} is refused: {said}"));
    }

    fn unsubscribed(&self, channel: &str) {
        self.add(format!("{channel} has ended"));
    }

    fn not_unsubscribed(&self, said: &str) {
        self.add(format!("no end: {said}"));
    }
}

/// The server's end of a connection.
pub(in crate::servers::redis) struct Peer(DuplexStream);

impl Peer {
    /// Waits until the client has sent these commands, and no other before them.
    pub(in crate::servers::redis) async fn hears(&mut self, commands: &[&[&str]]) {
        for command in commands {
            assert_eq!(self.command().await, *command);
        }
    }

    /// The next command of the client.
    pub(in crate::servers::redis) async fn command(&mut self) -> Vec<String> {
        let read = async {
            let count = self.number('*').await;
            let mut words = Vec::new();
            for _ in 0..count {
                let mut word = vec![0; self.number('$').await + 2];
                self.0.read_exact(&mut word).await.unwrap();
                words.push(String::from_utf8_lossy(&word).trim_end().to_owned());
            }
            words
        };
        tokio::time::timeout(BOUND, read)
            .await
            .expect("a command is sent")
    }

    /// The number in a line that begins with this character.
    async fn number(&mut self, kind: char) -> usize {
        let mut line = String::new();
        while !line.ends_with('\n') {
            line.push(self.0.read_u8().await.unwrap().into());
        }
        line.strip_prefix(kind).unwrap().trim_end().parse().unwrap()
    }

    pub(in crate::servers::redis) async fn says(&mut self, bytes: &str) {
        self.0.write_all(bytes.as_bytes()).await.unwrap();
    }
}

/// A connection that tells these messages, and the server's end of it.
pub(in crate::servers::redis) fn telling(messages: Arc<dyn Messages>) -> (Connection, Peer) {
    let (client, server) = duplex(ROOM);
    (Connection::new(Box::pin(client), BOUND, messages), Peer(server))
}

fn serve(stream: impl Stream + 'static, patience: Duration) -> (Connection, Arc<Told>) {
    let told = Arc::new(Told::default());
    let messages: Arc<dyn Messages> = Arc::clone(&told) as _;
    (Connection::new(Box::pin(stream), patience, messages), told)
}

/// A connection whose buffers have room for so many bytes.
fn connect(room: usize) -> (Connection, Peer, Arc<Told>) {
    let (client, server) = duplex(room);
    let (connection, told) = serve(client, BOUND);
    (connection, Peer(server), told)
}

fn text(said: Result<Value, Unanswered>) -> String {
    said.unwrap().as_string().unwrap()
}

/// The words of the end of a connection.
async fn end_of(connection: &mut Connection) -> String {
    let lost = tokio::time::timeout(BOUND, connection.lost()).await;
    failure::words(lost.expect("the connection ends")).to_string()
}

/// A message of these words.
pub(in crate::servers::redis) fn push(words: &[&str]) -> String {
    let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    let words: Vec<_> = words.collect();
    format!(">{}\r\n{}", words.len(), words.concat())
}

#[tokio::test]
async fn commands_replies_and_messages_may_come_byte_by_byte() {
    let (connection, mut peer, told) = connect(1);
    let line = connection.line();
    line.subscribe("SUBSCRIBE", &"c".into(), 1);
    let calls = ["one", "two", "three"].map(|word| line.ask(&["ECHO", word]));
    peer.hears(&[
        &["SUBSCRIBE", "c"],
        &["ECHO", "one"],
        &["ECHO", "two"],
        &["ECHO", "three"],
    ])
    .await;
    let (confirmed, message) = (push(&["subscribe", "c", "1"]), push(&["message", "c", "hi"]));
    let replies = format!("{confirmed}$3\r\none\r\n{message}-ERR two\r\n+three\r\n");
    peer.says(&replies).await;
    let [one, two, three] = calls;
    assert_eq!(text(one.await), "one");
    assert!(matches!(two.await, Err(Unanswered::Error(said)) if said == "ERR two"));
    assert_eq!(text(three.await), "three");
    assert_eq!(told.all(), ["c is subscribed", "c says hi"]);
}

/// Counts how often it is written to.
struct Counted(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[tokio::test]
async fn commands_that_are_sent_in_one_poll_are_written_together() {
    let (client, server) = duplex(ROOM);
    let writes = Arc::new(AtomicUsize::new(0));
    let (connection, _) = serve(Counted(client, Arc::clone(&writes)), BOUND);
    let mut peer = Peer(server);
    for round in 1..=3 {
        let calls: Vec<_> = (0..100).map(|_| connection.line().ask(&["PING"])).collect();
        peer.hears(&[&["PING"] as &[&str]; 100]).await;
        assert_eq!(writes.load(Ordering::SeqCst), round);
        peer.says(&"+PONG\r\n".repeat(100)).await;
        for call in calls {
            assert_eq!(text(call.await), "PONG");
        }
    }
}

/// Race: The server reads slowly, and a call is sent while an earlier one is not all written.
#[tokio::test]
async fn a_call_that_is_sent_while_a_write_is_stuck_waits_for_no_reply() {
    let (connection, mut peer, _) = connect(16);
    let long = "x".repeat(100);
    let first = connection.line().ask(&["ECHO", &long]);
    // The write is stuck now.
    tokio::task::yield_now().await;
    let second = connection.line().ask(&["PING"]);
    peer.hears(&[&["ECHO", &long], &["PING"]]).await;
    peer.says("+one\r\n+two\r\n").await;
    assert_eq!(text(first.await), "one");
    assert_eq!(text(second.await), "two");
}

/// TLS keeps what is written until it is flushed.
#[tokio::test]
async fn what_is_written_is_flushed() {
    let (client, server) = duplex(ROOM);
    let (connection, _) = serve(BufWriter::new(client), BOUND);
    let mut peer = Peer(server);
    for _ in 0..2 {
        let call = connection.line().ask(&["PING"]);
        peer.hears(&[&["PING"]]).await;
        peer.says("+PONG\r\n").await;
        assert_eq!(text(call.await), "PONG");
    }
}

#[tokio::test]
async fn a_reply_to_no_call_ends_the_connection() {
    let (mut connection, mut peer, _) = connect(ROOM);
    let call = connection.line().ask(&["PING"]);
    peer.hears(&[&["PING"]]).await;
    peer.says("+PONG\r\n+again\r\n").await;
    assert_eq!(text(call.await), "PONG");
    let why = end_of(&mut connection).await;
    assert!(why.contains("out of step") && why.contains("again"), "{why}");
}

/// Race: Replies are off by one, and a subscription counts as confirmed by the reply to a call.
#[tokio::test]
async fn a_subscription_is_confirmed_by_a_message_for_its_channel_alone() {
    for wrong in ["+OK\r\n".to_owned(), push(&["subscribe", "other", "1"])] {
        let (mut connection, mut peer, told) = connect(ROOM);
        connection.line().subscribe("SUBSCRIBE", &"c".into(), 1);
        let call = connection.line().ask(&["PING"]);
        peer.says(&wrong).await;
        let why = end_of(&mut connection).await;
        assert!(why.contains("out of step"), "{why}");
        assert!(matches!(call.await, Err(Unanswered::Lost(_))));
        assert!(told.all().is_empty());
    }
    // Nor by one that nobody has asked for.
    let (mut connection, mut peer, _) = connect(ROOM);
    let _call = connection.line().ask(&["PING"]);
    peer.says(&push(&["subscribe", "c", "1"])).await;
    assert!(end_of(&mut connection).await.contains("out of step"));
}

#[tokio::test]
async fn bytes_that_are_no_reply_end_the_connection() {
    let (mut connection, mut peer, _) = connect(ROOM);
    let call = connection.line().ask(&["PING"]);
    peer.says("HTTP/1.1 400 Bad Request\r\n").await;
    let why = end_of(&mut connection).await;
    assert!(why.contains("cannot be read"), "{why}");
    assert!(matches!(call.await, Err(Unanswered::Lost(Failure::Unknown(_)))));
}

#[tokio::test]
async fn a_late_call_is_told_so_and_later_calls_get_their_own_replies() {
    let patience = Duration::from_millis(300);
    let (client, server) = duplex(ROOM);
    let (connection, _) = serve(client, patience);
    let mut peer = Peer(server);
    for round in 0..2 {
        let began = std::time::Instant::now();
        let late = connection.line().ask(&["ECHO", "late"]);
        let said = tokio::time::timeout(BOUND, late).await.expect("it is told");
        assert!(matches!(said, Err(Unanswered::Late)), "{said:?}");
        assert!(began.elapsed() >= patience, "too early");
        let next = connection.line().ask(&["ECHO", "next"]);
        peer.hears(&[&["ECHO", "late"], &["ECHO", "next"]]).await;
        peer.says("+late\r\n+next\r\n").await;
        assert_eq!(text(next.await), "next", "{round}");
    }
}

#[tokio::test]
async fn each_late_call_is_told_so_though_none_has_a_reply() {
    let (client, server) = duplex(ROOM);
    let (connection, _) = serve(client, Duration::from_millis(50));
    let mut peer = Peer(server);
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.push(connection.line().ask(&["PING"]));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for call in calls {
        let said = tokio::time::timeout(BOUND, call).await.expect("it is told");
        assert!(matches!(said, Err(Unanswered::Late)), "{said:?}");
    }
    // The replies come after all.
    peer.says("+1\r\n+2\r\n+3\r\n").await;
    let next = connection.line().ask(&["PING"]);
    peer.says("+4\r\n").await;
    assert_eq!(text(next.await), "4");
}

#[tokio::test]
async fn a_subscription_may_be_confirmed_late() {
    let (client, server) = duplex(ROOM);
    let (connection, told) = serve(client, Duration::from_millis(50));
    let mut peer = Peer(server);
    for (command, channel) in [("SUBSCRIBE", "a"), ("SUBSCRIBE", "b")] {
        connection.line().subscribe(command, &channel.into(), 1);
    }
    connection.line().unsubscribe("UNSUBSCRIBE", "a");
    let late = connection.line().ask(&["PING"]);
    assert!(matches!(late.await, Err(Unanswered::Late)));
    let next = connection.line().ask(&["PING"]);
    let confirmed = push(&["subscribe", "a", "1"]);
    let ended = push(&["unsubscribe", "a", "0"]);
    peer.says(&format!(
        "{confirmed}-NOPERM b\r\n{ended}*0\r\n+late\r\n+next\r\n"
    ))
    .await;
    assert_eq!(text(next.await), "next");
    assert_eq!(
        told.all(),
        ["a is subscribed", "b is refused: NOPERM b", "a has ended"]
    );
}

/// Race: The process stands still, and goes on long after the reply has come.
#[tokio::test]
async fn a_process_that_stood_still_reads_the_reply_before_it_looks_at_the_time() {
    let patience = Duration::from_millis(100);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await;
    let (mut peer, _) = listener.accept().unwrap();
    let (connection, _) = serve(stream.unwrap(), patience);
    for _ in 0..5 {
        let call = connection.line().ask(&["PING"]);
        // The command is written, and the time is set.
        tokio::task::yield_now().await;
        let mut heard = [0; 14];
        peer.read_exact(&mut heard).unwrap();
        peer.write_all(b"+PONG\r\n").unwrap();
        std::thread::sleep(2 * patience);
        assert_eq!(text(call.await), "PONG");
    }
}

#[tokio::test]
async fn calls_in_flight_learn_at_once_that_the_server_has_hung_up() {
    let (mut connection, mut peer, _) = connect(ROOM);
    let calls = ["one", "two"].map(|word| connection.line().ask(&["ECHO", word]));
    peer.hears(&[&["ECHO", "one"], &["ECHO", "two"]]).await;
    peer.says("+one\r\n").await;
    drop(peer);
    let [one, two] = calls;
    assert_eq!(text(one.await), "one");
    let said = tokio::time::timeout(BOUND / 2, two).await.expect("at once");
    let Err(Unanswered::Lost(Failure::Unknown(why))) = said else {
        panic!("{said:?}")
    };
    assert_eq!(why.to_string(), "the server has closed the connection");
    // This is known from now on.
    for _ in 0..2 {
        assert_eq!(end_of(&mut connection).await, why.to_string());
    }
    let said = connection.line().ask(&["PING"]).now_or_never();
    assert!(matches!(&said, Some(Err(Unanswered::Lost(_)))), "{said:?}");
}

#[tokio::test]
async fn a_connection_that_is_dropped_is_closed_and_its_calls_learn_that_at_once() {
    let (connection, mut peer, _) = connect(ROOM);
    let line = connection.line().clone();
    let call = line.ask(&["PING"]);
    peer.hears(&[&["PING"]]).await;
    drop(connection);
    for call in [call, line.ask(&["PING"])] {
        let said = call.now_or_never().expect("at once");
        assert!(matches!(said, Err(Unanswered::Lost(_))), "{said:?}");
    }
    let closed = tokio::time::timeout(BOUND, peer.0.read(&mut [0])).await;
    assert_eq!(closed.expect("closed").unwrap(), 0);
}

#[test]
fn calls_end_with_the_runtime_of_their_connection() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (client, _server) = duplex(ROOM);
    let (connection, _) = runtime.block_on(async { serve(client, BOUND) });
    let call = connection.line().ask(&["PING"]);
    drop(runtime);
    let said = call.now_or_never().expect("at once");
    assert!(matches!(said, Err(Unanswered::Lost(_))), "{said:?}");
}

#[tokio::test]
async fn a_caller_that_is_gone_takes_no_reply_from_another() {
    let (connection, mut peer, _) = connect(ROOM);
    drop(connection.line().ask(&["ECHO", "gone"]));
    let call = connection.line().ask(&["ECHO", "here"]);
    peer.says("+gone\r\n+here\r\n").await;
    assert_eq!(text(call.await), "here");
}

/// `ASKING` stands before the call, and may be refused like any other command.
#[tokio::test]
async fn replies_to_commands_before_a_call_are_dropped() {
    for ignored in ["+OK\r\n", "-ERR no\r\n"] {
        let (connection, mut peer, _) = connect(ROOM);
        let (told, call) = answering();
        connection.line().send(|out| {
            words(out, 1, [&b"ASKING"[..]].into_iter());
            words(out, 1, [&b"PING"[..]].into_iter());
            (1, told)
        });
        peer.hears(&[&["ASKING"], &["PING"]]).await;
        peer.says(&format!("{ignored}+PONG\r\n")).await;
        assert_eq!(text(call.await), "PONG");
    }
}

#[tokio::test]
async fn errors_and_confirmations_of_subscriptions_are_told_in_their_order() {
    let (connection, mut peer, told) = connect(ROOM);
    let line = connection.line();
    for channel in ["a", "b", "c"] {
        line.subscribe("SSUBSCRIBE", &channel.into(), 1);
    }
    let call = line.ask(&["PING"]);
    line.subscribe("SSUBSCRIBE", &"d".into(), 1);
    peer.hears(&[
        &["SSUBSCRIBE", "a"],
        &["SSUBSCRIBE", "b"],
        &["SSUBSCRIBE", "c"],
        &["PING"],
        &["SSUBSCRIBE", "d"],
    ])
    .await;
    let (b, d) = (push(&["ssubscribe", "b", "1"]), push(&["ssubscribe", "d", "2"]));
    let message = push(&["smessage", "b", "hi"]);
    peer.says(&format!("-MOVED 1 a:1\r\n{b}{message}-NOPERM c\r\n+PONG\r\n{d}"))
        .await;
    assert_eq!(text(call.await), "PONG");
    let last = line.ask(&["PING"]);
    peer.says("+PONG\r\n").await;
    last.await.unwrap();
    assert_eq!(
        told.all(),
        [
            "a is refused: MOVED 1 a:1",
            "b is subscribed",
            "b says hi",
            "c is refused: NOPERM c",
            "d is subscribed"
        ]
    );
}

/// Race: A server of a cluster ends a subscription by itself, while the client does it too.
#[tokio::test]
async fn the_end_of_a_subscription_shifts_no_reply_however_it_is_answered() {
    let ended = push(&["sunsubscribe", "a", "0"]);
    let refused = "-MOVED 1 a:1\r\n".to_owned();
    let cases = [
        (ended.clone(), &["a has ended"][..]),
        (refused.clone(), &["no end: MOVED 1 a:1"]),
        (ended.clone() + &refused, &["a has ended", "no end: MOVED 1 a:1"]),
        (ended.repeat(2), &["a has ended", "a has ended"]),
    ];
    for (answer, expected) in cases {
        let (connection, mut peer, told) = connect(ROOM);
        let line = connection.line();
        let before = line.ask(&["ECHO", "before"]);
        line.unsubscribe("SUNSUBSCRIBE", "a");
        let behind = line.ask(&["ECHO", "behind"]);
        peer.hears(&[
            &["ECHO", "before"],
            &["SUNSUBSCRIBE", "a"],
            &["HELLO"],
            &["ECHO", "behind"],
        ])
        .await;
        peer.says(&format!("+before\r\n{answer}%1\r\n+proto\r\n:3\r\n+behind\r\n"))
            .await;
        assert_eq!(text(before.await), "before");
        assert_eq!(text(behind.await), "behind");
        assert_eq!(told.all(), expected);
    }
}

/// A server refuses a certificate only after the handshake, and ends the connection then.
#[test]
fn a_call_is_never_refused_by_the_end_of_its_connection() {
    let refused = Failure::Refused(ServerError::new("TLS: bad certificate"));
    let failure = Failure::from(Unanswered::Lost(refused));
    assert!(matches!(failure, Failure::Unknown(_)), "{failure:?}");
}
