//! Names, ports and directories that no other test has.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns a key prefix that no other test uses, even in other processes that share the server.
pub fn prefix() -> String {
    unique("t")
}

/// Returns a lock name that no other test uses.
pub fn name() -> String {
    unique("lock")
}

fn unique(kind: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!(
        "{kind}-{}-{count}-{:08x}",
        std::process::id(),
        random() & 0xffff_ffff
    )
}

fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// Returns a loopback port that is not in use. No other test gets it while this process lives, even while its
/// server is killed or its proxy refuses connections. Clients that try the port then must not find another
/// test's server there.
///
/// The port is below the range that the kernel uses for outgoing connections. Within that range, a client
/// that keeps reconnecting to a dead port is sooner or later given that very port as its own. It is then
/// connected to itself, and keeps a restarted server from listening. The port 10,000 above, on which a
/// cluster's servers talk to each other, is below that range too: a closed connection keeps its port for
/// another minute.
pub fn free_port() -> u16 {
    for _ in 0..1_000 {
        let port = u16::try_from(10_000 + random() % 10_000).expect("below 20,000");
        if claim(port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between 10000 and 20000");
}

/// Claims the port for this process, unless it is claimed already. The claim is a bound UDP port of the same
/// number. It does not conflict with the TCP port, and the system frees it when the process ends.
fn claim(port: u16) -> bool {
    static CLAIMS: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    let claim = UdpSocket::bind(("127.0.0.1", port));
    claim
        .map(|claim| CLAIMS.lock().expect("no panic").push(claim))
        .is_ok()
}

/// A directory that is removed when this value is dropped.
#[derive(Debug)]
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn create() -> TempDir {
        let path = std::env::temp_dir().join(unique("fairlock-test"));
        std::fs::create_dir_all(&path).expect("a directory for temporary files");
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
