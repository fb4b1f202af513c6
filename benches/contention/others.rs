//! Servers other than Redis, started for the peers that need them.

use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fairlock_benches::Outcome;
use fairlock_testkit::{Postgres, ServerProcess, free_port};

use crate::peer::{Kind, java};

/// A running server.
#[derive(Debug)]
pub(crate) struct Other {
    pub(crate) url: String,
    /// Product and version.
    pub(crate) version: String,
    process: ServerProcess,
}

impl Other {
    /// Returns `None` if the kind is one of Redis.
    pub(crate) fn start(kind: Kind, programs: &Path) -> Outcome<Option<Other>> {
        match kind {
            Kind::Redis | Kind::RedisEvents | Kind::Valkey9 => Ok(None),
            Kind::Postgres => postgres().map(Some),
            Kind::Etcd => etcd(programs).map(Some),
            Kind::ZooKeeper => zookeeper(programs).map(Some),
        }
    }

    /// The CPU time of the server and its children, or zero if the system does not report it.
    pub(crate) fn cpu(&self) -> Duration {
        Duration::from_secs_f64(cpu_of_family(self.process.id()).unwrap_or_default())
    }
}

/// Starts etcd with its data in memory, because none of the locks here is on a disk. It is a cluster of one,
/// started as the documentation says. `scripts/build-peers` built its program.
fn etcd(programs: &Path) -> Outcome<Other> {
    let program = std::path::absolute(programs)?.join("etcd");
    let (port, peers) = (free_port(), free_port());
    let (client, peer) = (
        format!("http://127.0.0.1:{port}"),
        format!("http://127.0.0.1:{peers}"),
    );
    let mut command = Command::new(&program);
    command
        .args([
            "--data-dir",
            "data",
            "--initial-cluster",
            &format!("default={peer}"),
        ])
        .args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ]);
    let mut process = ServerProcess::start(&mut command, in_memory(port), "KILL").map_err(missing("etcd"))?;
    process.wait_until(|| TcpStream::connect(("127.0.0.1", port)).is_ok())?;
    let version = first_line(Command::new(&program).arg("--version"))?.replace("etcd Version: ", "etcd ");
    let url = format!("127.0.0.1:{port}");
    Ok(Other {
        url,
        version,
        process,
    })
}

/// Starts ZooKeeper with its data in memory, like etcd. Its program is among the libraries of the Java peers.
fn zookeeper(programs: &Path) -> Outcome<Other> {
    let version = std::fs::read_dir(programs.join("java/lib"))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .find_map(|file| {
            let version = file.strip_prefix("zookeeper-")?.strip_suffix(".jar")?;
            version
                .starts_with(|c: char| c.is_ascii_digit())
                .then(|| format!("ZooKeeper {version}"))
        })
        .ok_or("no ZooKeeper among the Java libraries")?;
    let port = free_port();
    let folder = in_memory(port);
    std::fs::create_dir_all(&folder)?;
    std::fs::write(
        folder.join("zoo.cfg"),
        format!(
            "tickTime=2000\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n\
             admin.enableServer=false\n",
            folder.display()
        ),
    )?;
    let mut command = java(&std::path::absolute(programs)?, None);
    command.args(["org.apache.zookeeper.server.ZooKeeperServerMain", "zoo.cfg"]);
    let mut process = ServerProcess::start(&mut command, folder, "KILL").map_err(missing("java"))?;
    process.wait_until(|| TcpStream::connect(("127.0.0.1", port)).is_ok())?;
    let url = format!("127.0.0.1:{port}");
    Ok(Other {
        url,
        version,
        process,
    })
}

fn postgres() -> Outcome<Other> {
    let Postgres {
        url,
        version,
        process,
    } = Postgres::start()?;
    Ok(Other {
        url,
        version,
        process,
    })
}

/// A folder in memory, if the system has one.
fn in_memory(port: u16) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    parent.join(format!("fairlock-bench-{}-{port}", std::process::id()))
}

fn missing(program: &'static str) -> impl Fn(io::Error) -> Box<dyn std::error::Error + Send + Sync> {
    move |e| format!("{program}: {e}").into()
}

fn first_line(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .next()
        .unwrap_or("?")
        .to_owned())
}

/// The CPU time of a process and of its living children, if there is a `/proc` to read it from.
fn cpu_of_family(id: u32) -> Option<f64> {
    const TICKS_PER_SECOND: f64 = 100.0;
    let id = id.to_string();
    let mut ticks = 0.0;
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        // The name, in parentheses, may contain anything.
        let Some((own_id, rest)) = stat.split_once(' ') else {
            continue;
        };
        let fields: Vec<&str> = rest
            .rsplit_once(')')
            .map_or(rest, |(_, rest)| rest)
            .split_whitespace()
            .collect();
        if own_id == id || fields.get(1) == Some(&id.as_str()) {
            let value = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
            ticks += value(11)? + value(12)?;
        }
    }
    (ticks > 0.0).then(|| ticks / TICKS_PER_SECOND)
}
