//! A network that fails on command: a TCP proxy between clients and one or more servers.
//!
//! The proxy runs on a thread of its own, so that a test may block, pause time or drop its runtime meanwhile.
//! It forwards whole commands and whole replies, so that it can count them and lose exactly one.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::names::free_port;

/// A proxy in front of one server. When this value is dropped, the proxy ends and closes its connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: watch::Sender<State>,
    shared: Arc<Shared>,
}

/// The current faults of the network. Every connection looks at them before each step.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    delay_up: Duration,
    delay_down: Duration,
    /// Connections with a smaller number are frozen.
    frozen_below: u64,
    /// Connections with a smaller number are closed.
    cut_below: u64,
    /// Connections with a smaller number have lost their client's side.
    stranded_below: u64,
    swallow: bool,
    refuse: bool,
}

#[derive(Debug, Default)]
struct Shared {
    /// The ports of the servers.
    servers: Mutex<Vec<u16>>,
    connections: AtomicU64,
    open: AtomicUsize,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    commands: Mutex<HashMap<String, u64>>,
    lose_reply: Mutex<Option<LoseReply>>,
    lost_replies: AtomicU64,
}

#[derive(Debug)]
struct LoseReply {
    command: String,
    left: usize,
}

impl Proxy {
    pub fn start(server_port: u16) -> Proxy {
        let port = free_port();
        let (state, watched) = watch::channel(State::default());
        let shared = Arc::new(Shared {
            servers: Mutex::new(vec![server_port]),
            ..Shared::default()
        });
        let (ready, is_ready) = std::sync::mpsc::channel();
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(accept(port, watched, theirs, ready));
        });
        is_ready.recv().expect("a proxy that listens");
        Proxy { port, state, shared }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Makes new connections lead to these servers in turn, like an address that moves to another server, or
    /// a proxy that spreads its connections. Open connections stay where they are.
    pub fn lead_to(&self, server_ports: &[u16]) {
        let mut servers = self.shared.servers.lock().unwrap();
        *servers = server_ports.to_vec();
        // The next connection leads to the first of these servers.
        let before = usize::try_from(self.next()).expect("a count") % servers.len();
        servers.rotate_right(before);
    }

    /// Delays each direction by this time, in whole milliseconds.
    pub fn delay(&self, each_way: Duration) {
        self.delay_up(each_way);
        self.delay_down(each_way);
    }

    /// Delays the direction from the clients to the server.
    pub fn delay_up(&self, delay: Duration) {
        self.change(|state| state.delay_up = delay);
    }

    /// Delays the direction from the server to the clients.
    pub fn delay_down(&self, delay: Duration) {
        self.change(|state| state.delay_down = delay);
    }

    /// Stops forwarding on open and on new connections, and keeps what arrives for later, like a network that
    /// is down for a while.
    pub fn freeze(&self) {
        self.change(|state| state.frozen_below = u64::MAX);
    }

    /// Like [`freeze`](Proxy::freeze), but new connections work.
    pub fn freeze_open(&self) {
        let next = self.next();
        self.change(|state| state.frozen_below = next);
    }

    /// Like [`freeze`](Proxy::freeze), but only for the first `count` connections.
    pub fn freeze_first(&self, count: u64) {
        self.change(|state| state.frozen_below = count);
    }

    /// Closes the clients' side of the open connections. Bytes that the clients have sent stay in flight, and
    /// reach the server after [`thaw`](Proxy::thaw), so commands of a closed connection run late.
    pub fn strand(&self) {
        let next = self.next();
        self.change(|state| {
            state.frozen_below = state.frozen_below.max(next);
            state.stranded_below = next;
        });
    }

    /// Ends [`freeze`](Proxy::freeze) and its variants: what was kept is delivered.
    pub fn thaw(&self) {
        self.change(|state| state.frozen_below = 0);
    }

    /// Closes all open connections. New connections work.
    pub fn cut(&self) {
        let next = self.next();
        self.change(|state| state.cut_below = next);
    }

    /// Accepts everything and loses it, on open and on new connections.
    pub fn black_hole(&self) {
        self.change(|state| state.swallow = true);
    }

    /// Refuses new connections. Open connections work.
    pub fn refuse(&self) {
        self.change(|state| state.refuse = true);
    }

    /// Closes the [`accepted`](Proxy::accepted) connections with a smaller number than this, and refuses new
    /// ones. Only later connections keep the server.
    pub fn cut_off(&self, number: u64) {
        self.change(|state| (state.cut_below, state.refuse) = (number, true));
    }

    /// Ends every fault, delays included. Connections that lost bytes in a black hole are closed.
    pub fn heal(&self) {
        let next = self.next();
        self.change(|state| {
            let cut_below = if state.swallow { next } else { state.cut_below };
            *state = State {
                cut_below,
                stranded_below: state.stranded_below,
                ..State::default()
            };
        });
    }

    /// Loses the `n`-th reply from now (1 = the next) to a script call, `EVALSHA` or `EVAL`, and closes its
    /// connection. The script has run, but its caller gets no answer.
    pub fn lose_reply(&self, n: usize) {
        self.lose_reply_to("EVAL", n);
    }

    /// Like [`lose_reply`](Proxy::lose_reply), for commands that start with `command`, such as `PING`.
    pub fn lose_reply_to(&self, command: &str, n: usize) {
        assert!(n > 0, "replies are counted from 1");
        *self.shared.lose_reply.lock().unwrap() = Some(LoseReply {
            command: command.to_owned(),
            left: n,
        });
    }

    /// How many replies were lost on purpose.
    pub fn lost_replies(&self) -> u64 {
        self.shared.lost_replies.load(Ordering::SeqCst)
    }

    /// How many commands with this name, in capitals, have reached the server's side.
    pub fn count(&self, command: &str) -> u64 {
        self.shared
            .commands
            .lock()
            .unwrap()
            .get(command)
            .copied()
            .unwrap_or(0)
    }

    /// How many commands have reached the server's side.
    pub fn commands(&self) -> u64 {
        self.shared.commands.lock().unwrap().values().sum()
    }

    /// Bytes from the clients to the server.
    pub fn bytes_up(&self) -> u64 {
        self.shared.bytes_up.load(Ordering::SeqCst)
    }

    /// Bytes from the server to the clients.
    pub fn bytes_down(&self) -> u64 {
        self.shared.bytes_down.load(Ordering::SeqCst)
    }

    /// How many connections have been accepted so far.
    pub fn accepted(&self) -> u64 {
        self.next()
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    fn next(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }
}

impl Shared {
    /// The port of the server to which the connection with this number leads.
    fn server_of(&self, number: u64) -> u16 {
        let servers = self.servers.lock().unwrap();
        servers[usize::try_from(number).expect("a count") % servers.len()]
    }
}

/// Accepts connections until the `Proxy` is dropped, and then ends with all its connections.
async fn accept(
    port: u16,
    mut state: watch::Receiver<State>,
    shared: Arc<Shared>,
    ready: std::sync::mpsc::Sender<()>,
) {
    let mut listener = Some(listen(port).await);
    let _ = ready.send(());
    loop {
        let refuse = state.borrow_and_update().refuse;
        if refuse {
            listener = None;
        } else if listener.is_none() {
            listener = Some(listen(port).await);
        }
        tokio::select! {
            biased;
            changed = state.changed() => if changed.is_err() { return },
            accepted = async { listener.as_ref().expect("a listener").accept().await }, if listener.is_some() => {
                let (client, _) = accepted.expect("a connection");
                let number = shared.connections.fetch_add(1, Ordering::SeqCst);
                let server = shared.server_of(number);
                tokio::spawn(connection(number, client, server, state.clone(), Arc::clone(&shared)));
            }
        }
    }
}

/// Listens on a port that this process has claimed. A child that another thread has just forked still has the
/// socket that tried the port, until it calls `exec`.
async fn listen(port: u16) -> TcpListener {
    let began = Instant::now();
    loop {
        match TcpListener::bind(("127.0.0.1", port)).await {
            Ok(listener) => return listener,
            Err(error) if began.elapsed() > Duration::from_secs(5) => {
                panic!("the port of the proxy: {error}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

async fn connection(
    number: u64,
    client: TcpStream,
    server_port: u16,
    state: watch::Receiver<State>,
    shared: Arc<Shared>,
) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    shared.open.fetch_add(1, Ordering::SeqCst);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let asked = Arc::new(Mutex::new(VecDeque::new()));
    let pump = |read, write, up| Pump {
        number,
        up,
        read: Some(read),
        write: Some(write),
        state: state.clone(),
        shared: Arc::clone(&shared),
        asked: Arc::clone(&asked),
        partial: Vec::new(),
        pending: VecDeque::new(),
        replicates: false,
    };
    let (up, down) = (
        pump(from_client, to_server, true),
        pump(from_server, to_client, false),
    );
    // If one direction fails, the other one ends too. If one ends normally, the other may go on.
    let _ = tokio::try_join!(up.run(), down.run());
    shared.open.fetch_sub(1, Ordering::SeqCst);
}

/// Means that a connection must be closed in both directions.
struct Cut;

/// One direction of a connection.
struct Pump {
    number: u64,
    up: bool,
    read: Option<OwnedReadHalf>,
    write: Option<OwnedWriteHalf>,
    state: watch::Receiver<State>,
    shared: Arc<Shared>,
    /// The names of the commands whose replies are still to come.
    asked: Arc<Mutex<VecDeque<String>>>,
    partial: Vec<u8>,
    pending: VecDeque<(Instant, Vec<u8>)>,
    /// The server now sends data and commands for a replica instead of replies.
    replicates: bool,
}

impl Pump {
    async fn run(mut self) -> Result<(), Cut> {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let state = *self.state.borrow_and_update();
            if self.number < state.cut_below {
                return Err(Cut);
            }
            if self.number < state.stranded_below {
                // The client's side is closed. What the client sent stays with the pump to the server.
                if self.up {
                    self.read = None;
                } else {
                    self.write = None;
                }
            }
            let frozen = self.number < state.frozen_below;
            let due = self.pending.front().map(|(due, _)| *due).filter(|_| !frozen);
            if self.read.is_none() && self.pending.is_empty() && !frozen {
                self.write = None;
                return Ok(());
            }
            tokio::select! {
                // A change applies to everything that arrives after it.
                biased;
                changed = self.state.changed() => changed.map_err(|_| Cut)?,
                () = async { sleep_until(due.expect("due")).await }, if due.is_some() => self.put_out().await?,
                read = async { self.read.as_mut().expect("open").read(&mut buffer).await }, if self.read.is_some() => {
                    match read {
                        Ok(length) if length > 0 => self.take_in(&buffer[..length])?,
                        _ => self.read = None,
                    }
                }
            }
        }
    }

    /// Splits the bytes into commands or replies, and appends each complete one to the pending frames.
    fn take_in(&mut self, bytes: &[u8]) -> Result<(), Cut> {
        self.partial.extend_from_slice(bytes);
        // Bytes that were sent after a change may arrive before this pump has seen the change.
        let state = *self.state.borrow();
        let due = Instant::now() + if self.up { state.delay_up } else { state.delay_down };
        let mut start = 0;
        while let Some(length) = self.next_length(&self.partial[start..]) {
            let frame = self.partial[start..start + length].to_vec();
            start += length;
            if self.up {
                self.asked.lock().unwrap().push_back(command_name(&frame));
            } else if self.is_to_be_lost() {
                self.shared.lost_replies.fetch_add(1, Ordering::SeqCst);
                return Err(Cut);
            }
            if !state.swallow {
                self.pending.push_back((due, frame));
            }
        }
        self.partial.drain(..start);
        Ok(())
    }

    /// The length of the next piece that is complete, if any.
    fn next_length(&self, bytes: &[u8]) -> Option<usize> {
        if self.replicates {
            Some(bytes.len()).filter(|length| *length > 0)
        } else {
            frame_length(bytes)
        }
    }

    /// Whether the test asked to lose this reply.
    fn is_to_be_lost(&mut self) -> bool {
        let Some(command) = self.asked.lock().unwrap().pop_front() else {
            return false;
        };
        self.replicates |= command == "PSYNC";
        let mut rule = self.shared.lose_reply.lock().unwrap();
        match rule.as_mut() {
            Some(lose) if command.starts_with(&lose.command) => {
                lose.left -= 1;
                if lose.left == 0 {
                    *rule = None;
                    return true;
                }
                false
            }
            _ => false,
        }
    }

    async fn put_out(&mut self) -> Result<(), Cut> {
        let Some((_, frame)) = self.pending.pop_front() else {
            return Ok(());
        };
        let length = u64::try_from(frame.len()).expect("a length");
        if self.up {
            self.shared.bytes_up.fetch_add(length, Ordering::SeqCst);
            *self
                .shared
                .commands
                .lock()
                .unwrap()
                .entry(command_name(&frame))
                .or_default() += 1;
        } else {
            self.shared.bytes_down.fetch_add(length, Ordering::SeqCst);
        }
        match self.write.as_mut() {
            Some(write) => write.write_all(&frame).await.map_err(|_| Cut),
            None => Ok(()),
        }
    }
}

/// The length of the first complete value of the Redis protocol, versions 2 and 3.
fn frame_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let count = || {
        std::str::from_utf8(&bytes[1..line - 2])
            .ok()?
            .parse::<usize>()
            .ok()
    };
    let children = match bytes[0] {
        b'$' | b'=' | b'!' => {
            // A length of -1 means that there is no value, and no bytes follow.
            let end = count().map_or(line, |length| line + length + 2);
            return (bytes.len() >= end).then_some(end);
        }
        b'*' | b'~' | b'>' => count().unwrap_or(0),
        b'%' | b'|' => 2 * count().unwrap_or(0),
        _ => 0,
    };
    let mut end = line;
    for _ in 0..children {
        end += frame_length(&bytes[end..])?;
    }
    Some(end)
}

/// The first word of a command, in capitals.
fn command_name(frame: &[u8]) -> String {
    let text = String::from_utf8_lossy(frame);
    text.split("\r\n").nth(2).unwrap_or_default().to_ascii_uppercase()
}
