//! A server of one's own: on a free loopback port, in a temporary folder, without persistence, ended by its process
//! id when the value goes, also by a panic.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::info::field;
use crate::wire::Wire;

/// How long a server may take to answer its first PING.
const START_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
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
        let child = spawn(&folder, port).inspect_err(|_| drop(std::fs::remove_dir_all(&folder)))?;
        let mut server = Server {
            child,
            folder,
            url: format!("redis://127.0.0.1:{port}"),
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
        // Nothing to save, nobody to tell: the shortest way out.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn spawn(folder: &std::path::Path, port: u16) -> io::Result<Child> {
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
