//! Real servers for the tests, and wires to them that can be cut.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

/// A server process on a free loopback port. It is killed when this is dropped.
pub(crate) struct Server {
    process: Child,
    directory: PathBuf,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start() -> Server {
        // Another process may take the port before the server does.
        for _ in 0..20 {
            if let Some(server) = Server::start_on(free_port()) {
                return server;
            }
        }
        panic!("no server comes up");
    }

    pub(super) fn start_on(port: u16) -> Option<Server> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("fairlock-store-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let process = Command::new(program())
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .args(["--port", &port.to_string(), "--dir"])
            .arg(&directory)
            .stdout(Stdio::null())
            .spawn()
            .expect("a server starts: run scripts/install-server");
        let mut server = Server {
            process,
            directory,
            port,
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if server.process.try_wait().unwrap().is_some() {
                return None;
            }
            // A process that took the port earlier may answer too, or may not answer.
            let own = format!("process_id:{}\r\n", server.process.id());
            if server.ask("INFO server").is_ok_and(|info| info.contains(&own)) {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    pub(in crate::store::redis) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends one command over a separate connection, and returns the reply. Spaces separate the elements of
    /// arrays.
    pub(in crate::store::redis) fn tell(&self, command: &str) -> String {
        self.ask(command).unwrap()
    }

    fn ask(&self, command: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        read_reply(&mut BufReader::new(stream))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn read_reply(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let Some((kind, rest)) = line.trim_end().split_at_checked(1) else {
        return Ok(String::new());
    };
    Ok(match kind {
        "$" if rest != "-1" => {
            let mut text = vec![0; rest.parse::<usize>().unwrap() + 2];
            stream.read_exact(&mut text)?;
            String::from_utf8_lossy(&text).trim_end().to_owned()
        }
        "*" => {
            let elements: io::Result<Vec<_>> =
                (0..rest.parse().unwrap()).map(|_| read_reply(stream)).collect();
            elements?.join(" ")
        }
        _ => rest.to_owned(),
    })
}

pub(in crate::store::redis) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// A wire to a server. Its connections can be cut, or frozen: then nothing passes, and nothing is closed.
pub(super) struct Wire {
    port: u16,
    frozen: Arc<AtomicBool>,
    /// Connections up to this number are frozen.
    dead: watch::Sender<usize>,
    cut: watch::Sender<usize>,
    count: Arc<AtomicUsize>,
}

impl Wire {
    pub(super) async fn to(server: &Server) -> Wire {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target: SocketAddr = ([127, 0, 0, 1], server.port).into();
        let wire = Wire {
            port: listener.local_addr().unwrap().port(),
            frozen: Arc::default(),
            dead: watch::channel(0).0,
            cut: watch::channel(0).0,
            count: Arc::default(),
        };
        let (dead, cut, count) = (
            wire.dead.subscribe(),
            wire.cut.subscribe(),
            Arc::clone(&wire.count),
        );
        let frozen = Arc::clone(&wire.frozen);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                let (dead, mut cut, frozen) = (dead.clone(), cut.clone(), Arc::clone(&frozen));
                tokio::spawn(async move {
                    let far = tokio::net::TcpStream::connect(target).await.unwrap();
                    let stuck = move || frozen.load(Ordering::SeqCst) || *dead.borrow() >= number;
                    let (near, far) = (near.into_split(), far.into_split());
                    tokio::select! {
                        () = copy(near.0, far.1, stuck.clone()) => {}
                        () = copy(far.0, near.1, stuck) => {}
                        _ = cut.wait_for(|cut| *cut >= number) => {}
                    }
                });
            }
        });
        wire
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Freezes the existing connections. New ones work.
    pub(super) fn freeze_present(&self) {
        self.freeze_first(self.count.load(Ordering::SeqCst));
    }

    /// Freezes the first `count` connections.
    pub(super) fn freeze_first(&self, count: usize) {
        self.dead.send_replace(count);
    }

    pub(super) fn freeze_all(&self, frozen: bool) {
        self.frozen.store(frozen, Ordering::SeqCst);
    }

    /// Closes the existing connections.
    pub(super) fn cut_present(&self) {
        self.cut.send_replace(self.count.load(Ordering::SeqCst));
    }
}

async fn copy(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    stuck: impl Fn() -> bool,
) {
    let mut buffer = vec![0; 65536];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        while stuck() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// The flaw of a server that accepts any command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) enum Flaw {
    /// It answers each PING with the nonce of the previous one.
    Desynchronised,
    /// It closes the connection after the echo of a PING with a nonce.
    HangsUp,
}

/// Starts such a server, and returns its port.
pub(in crate::store::redis) fn flawed(flaw: Flaw) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || answer(stream, flaw));
        }
    });
    port
}

fn answer(stream: TcpStream, flaw: Flaw) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut writer, mut last) = (stream, "0".to_owned());
    while let Ok(command) = read_reply(&mut reader) {
        let words: Vec<_> = command.split(' ').collect();
        let mut is_over = false;
        let reply = match words[0].to_ascii_uppercase().as_str() {
            "" => return,
            "PING" if words.len() == 2 => {
                let before = std::mem::replace(&mut last, words[1].to_owned());
                is_over = flaw == Flaw::HangsUp;
                let echo = if is_over { words[1] } else { &before };
                format!("${}\r\n{echo}\r\n", echo.len())
            }
            "PING" => "+PONG\r\n".to_owned(),
            "CLIENT" => ":1\r\n".to_owned(),
            "SUBSCRIBE" if words.len() == 1 => "-ERR wrong number of arguments\r\n".to_owned(),
            "SUBSCRIBE" => words[1..]
                .iter()
                .map(|channel| {
                    let length = channel.len();
                    format!("*3\r\n$9\r\nsubscribe\r\n${length}\r\n{channel}\r\n:1\r\n")
                })
                .collect(),
            _ => "+OK\r\n".to_owned(),
        };
        if writer.write_all(reply.as_bytes()).is_err() || is_over {
            return;
        }
    }
}

/// The server program, selected as in the integration tests.
fn program() -> PathBuf {
    if let Some(program) = std::env::var_os("FAIRLOCK_TEST_SERVER") {
        return program.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    ["redis-server", "valkey-server"]
        .iter()
        .flat_map(|name| std::env::split_paths(&path).map(move |folder| folder.join(name)))
        .find(|program| program.is_file())
        .expect("redis-server or valkey-server on the PATH: run scripts/install-server")
}
