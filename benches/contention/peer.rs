//! The libraries that others use, each in a program of its own language (`benches/peers/`), which takes the
//! arguments of a client process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::workload::Workload;

/// A library with its settings.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    program: Program,
    pub(crate) kind: Kind,
    /// What its waiters can share.
    pub(crate) takes: &'static [Workload],
    /// Whether its program takes the URLs of several servers, for a lock on a majority of them.
    pub(crate) in_quorum: bool,
    /// Whether it only means something with one waiter.
    pub(crate) alone: bool,
    /// The settings, for the reader of the figures.
    pub(crate) settings: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Program {
    Go,
    Java,
    Rust,
}

/// The kind of server that a peer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Redis,
    /// Redis that publishes changes of its keys, at the cost of all its users.
    RedisEvents,
    /// Valkey 9, which has DELIFEQ.
    Valkey9,
    Postgres,
    Etcd,
    ZooKeeper,
}

impl Kind {
    /// Whether the server answers INFO and PING.
    pub(crate) const fn is_redis(self) -> bool {
        matches!(self, Kind::Redis | Kind::RedisEvents | Kind::Valkey9)
    }
}

use Kind::{Etcd, Postgres, Redis, RedisEvents, Valkey9, ZooKeeper};
use Program::{Go, Java, Rust};

const fn peer(name: &'static str, program: Program, kind: Kind, settings: &'static str) -> Peer {
    Peer {
        name,
        program,
        kind,
        takes: &[Workload::Lock],
        in_quorum: false,
        alone: false,
        settings,
    }
}

/// A peer that also makes a lock on a majority of several servers.
const fn in_quorum(mut peer: Peer) -> Peer {
    peer.in_quorum = true;
    peer
}

const fn alone(mut peer: Peer) -> Peer {
    peer.alone = true;
    peer
}

const fn semaphore(mut peer: Peer) -> Peer {
    peer.takes = &[Workload::Semaphore];
    peer
}

const fn rw_lock(mut peer: Peer) -> Peer {
    peer.takes = &[Workload::Rw, Workload::Readers];
    peer
}

/// All peers. Variants of one library are next to each other.
pub(crate) const PEERS: &[Peer] = &[
    in_quorum(peer(
        "redisson",
        Java,
        Redis,
        "getLock, defaults; in a quorum a RedissonRedLock of it",
    )),
    peer("redisson-fair", Java, Redis, "getFairLock, defaults"),
    peer(
        "redisson-spin",
        Java,
        Redis,
        "getSpinLock, defaults: 1, 2, 4 … 128 ms",
    ),
    peer("redisson-spin-tuned", Java, Redis, "1, 2, 4 … 16 ms"),
    peer(
        "spring",
        Java,
        Redis,
        "RedisLockRegistry, defaults: spins, 100 ms",
    ),
    peer("spring-tuned", Java, Redis, "spins, 10 ms"),
    peer("spring-pubsub", Java, Redis, "PUB_SUB_LOCK"),
    peer(
        "rueidislock",
        Go,
        Redis,
        "KeyMajority 1, as for one server; else defaults",
    ),
    peer("rueidislock-tuned", Go, Redis, "NoLoopTracking besides"),
    peer(
        "redislock",
        Go,
        Redis,
        "LinearBackoff 100 ms, as in its documentation; it has no default",
    ),
    peer("redislock-tuned", Go, Redis, "ExponentialBackoff 1 … 16 ms"),
    in_quorum(peer(
        "redsync",
        Go,
        Redis,
        "a pool per server, defaults: 50 … 250 ms; as many tries as it takes",
    )),
    in_quorum(peer("redsync-tuned", Go, Redis, "10 ms")),
    in_quorum(peer(
        "rslock",
        Rust,
        Redis,
        "defaults: up to 200 ms; as many tries as it takes",
    )),
    in_quorum(peer("rslock-tuned", Rust, Redis, "up to 10 ms")),
    peer(
        "rdlock",
        Rust,
        RedisEvents,
        "nothing to set; notify-keyspace-events KA on the server",
    ),
    alone(peer(
        "set-delifeq",
        Rust,
        Valkey9,
        "SET NX PX and DELIFEQ, without a library: the floor of an uncontended lock",
    )),
    peer(
        "postgres",
        Go,
        Postgres,
        "pg_advisory_lock, a connection per waiter",
    ),
    peer("etcd", Go, Etcd, "concurrency.Mutex, a session per waiter"),
    peer(
        "curator",
        Java,
        ZooKeeper,
        "InterProcessMutex, one client per process",
    ),
    semaphore(peer(
        "redisson-semaphore",
        Java,
        Redis,
        "RPermitExpirableSemaphore, leases of 30 s",
    )),
    semaphore(peer(
        "curator-semaphore",
        Java,
        ZooKeeper,
        "InterProcessSemaphoreV2, one client per process",
    )),
    semaphore(peer(
        "polling",
        Rust,
        Redis,
        "written for this bench: a set of holders, tries again after 10 … 800 ms",
    )),
    rw_lock(peer("redisson-rw", Java, Redis, "RReadWriteLock, defaults")),
    rw_lock(peer(
        "curator-rw",
        Java,
        ZooKeeper,
        "InterProcessReadWriteLock, one client per process",
    )),
];

impl Peer {
    /// The peer's program, as `scripts/build-peers` built it; `None` if it was not built.
    pub(crate) fn command(&self, programs: &Path) -> Option<Command> {
        let file = |name: &str| Some(programs.join(name)).filter(|path| path.exists());
        match self.program {
            Go => file("go").map(Command::new),
            Rust => file("rust").map(Command::new),
            Java => file("java/peers.jar").map(|jar| {
                let mut java = java(programs, Some(jar));
                java.arg("peers.Main");
                java
            }),
        }
    }

    /// The name and version of the library, or the reason why there is none.
    pub(crate) fn version(&self, programs: &Path) -> Result<String, String> {
        let mut command = self.command(programs).ok_or_else(|| {
            format!(
                "its program is not in {}: run scripts/build-peers",
                programs.display()
            )
        })?;
        let output = command
            .args(["--peer", self.name, "--version"])
            .output()
            .map_err(|e| e.to_string())?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(format!(
                "its program fails: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )),
        }
    }

    /// How long a process with this many waiters takes to start and connect.
    pub(crate) fn ready(&self, waiters: u32) -> Duration {
        let start = match self.program {
            Java => Duration::from_secs(4),
            Go | Rust => Duration::from_secs(1),
        };
        // Some libraries have a connection or a session for each waiter.
        start + Duration::from_millis(4) * waiters
    }
}

/// A Java machine with the libraries, and perhaps another archive before them.
pub(crate) fn java(programs: &Path, archive: Option<PathBuf>) -> Command {
    let path: Vec<String> = archive
        .into_iter()
        .chain([programs.join("java/lib/*")])
        .map(|entry| entry.display().to_string())
        .collect();
    let mut java = Command::new("java");
    // Several of these processes share the cores, so one garbage-collecting thread is enough for each.
    java.args(["-XX:+UseSerialGC", "-cp", &path.join(":")]);
    java
}
