//! A server of one's own: on a free loopback port, in a temporary folder, without persistence. It is ended by its
//! process id when the value goes, or when this process does, however that comes about.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::info::field;
use crate::wire::Wire;

/// How long a server may take to answer its first PING.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits until the other end of its stdin is closed, which the system does for a process that dies; not even Ctrl-C
/// ends it before that. $1 is the server's process id, $2 its folder.
const UNDERTAKER: &str = r#"trap '' INT TERM HUP; read _; kill -9 "$1"; rm -rf "$2""#;

#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    undertaker: Child,
    folder: PathBuf,
    url: String,
}

impl Server {
    /// Starts `redis-server` or `valkey-server`, whichever is on the PATH.
    pub(crate) fn start() -> io::Result<Server> {
        // Between finding a free port and the server's taking it, another program may be faster.
        let mut tries = 0..3;
        loop {
            match Server::start_once() {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && tries.next().is_some() => {}
                result => return result,
            }
        }
    }

    fn start_once() -> io::Result<Server> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let folder = std::env::temp_dir().join(format!("fairlock-bench-{}-{port}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let mut child = spawn(&folder, port).inspect_err(|_| drop(std::fs::remove_dir_all(&folder)))?;
        let undertaker = undertaker(&child, &folder).inspect_err(|_| drop(child.kill()))?;
        let url = format!("redis://127.0.0.1:{port}");
        let mut server = Server {
            child,
            undertaker,
            folder,
            url,
        };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> io::Result<()> {
        let started = Instant::now();
        loop {
            if self.child.try_wait()?.is_some() {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "the server ended as soon as it started",
                ));
            }
            let pid = Wire::connect(&self.url)
                .and_then(|mut wire| wire.command(&["INFO", "server"]))
                .map(|info| field(&info, "process_id").map(str::to_owned));
            match pid {
                Ok(Some(pid)) if pid == self.child.id().to_string() => return Ok(()),
                Ok(_) => {
                    return Err(io::Error::new(
                        io::ErrorKind::AddrInUse,
                        "another server took the port",
                    ));
                }
                Err(e) if started.elapsed() > START_TIMEOUT => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The undertaker first: a process id that was waited for may be somebody else's. Nothing to save, nobody to
        // tell: the shortest way out for both.
        for process in [&mut self.undertaker, &mut self.child] {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn spawn(folder: &Path, port: u16) -> io::Result<Child> {
    for program in ["redis-server", "valkey-server"] {
        let spawned = Command::new(program)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match spawned {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        "neither redis-server nor valkey-server is on the PATH: install one (scripts/install-server), or name a \
         running server with --url",
    ))
}

fn undertaker(server: &Child, folder: &Path) -> io::Result<Child> {
    Command::new("sh")
        .args(["-c", UNDERTAKER, "sh", &server.id().to_string()])
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}
