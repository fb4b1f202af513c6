//! The servers of a quorum, and what they remember when they come back.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fairlock_testkit::{Server, TempDir};
use tokio::time::{Instant, sleep};

use super::round::LEASE;

/// A server that came back may have forgotten holds, so it grants nothing for the longest lease, and for two
/// seconds more.
pub(crate) const MUTE: Duration = LEASE.saturating_add(Duration::from_secs(2));
/// Servers tell their age in whole seconds, so that it may be a second more.
const LEFT_ALONE: Duration = MUTE.saturating_add(Duration::from_secs(1));
/// The longest time from the start of a server until somebody has loaded its scripts.
const LONGEST_RETURN: Duration = Duration::from_secs(12);

/// The folder in which a server keeps its data.
const DATA: &str = "appendonlydir";

/// What a server remembers when it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Memory {
    Nothing,
    /// What it saved: all but the last second.
    Saved,
    /// What it had saved some time before.
    Older,
}

#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) all: Vec<Server>,
    copies: TempDir,
}

/// Whether the installed server is new enough: Redis 7.0 or any Valkey.
pub(crate) async fn can_be_a_quorum() -> bool {
    let info = Server::shared().await.info("server").await;
    let major = info["redis_version"]
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    major.is_some_and(|major: u32| major >= 7)
}

impl Servers {
    /// Starts servers that save their data once a second. Returns when they are old enough to grant locks.
    pub(crate) async fn start(count: usize) -> Servers {
        let mut all = Vec::new();
        for _ in 0..count {
            let server = Server::builder()
                .config("appendonly", "yes")
                .config("appendfsync", "everysec");
            all.push(server.start().await);
        }
        let servers = Servers {
            all,
            copies: TempDir::create(),
        };
        sleep(LEFT_ALONE).await;
        for at in 0..count {
            servers.copy(at);
            while servers.age(at).await <= MUTE.as_secs() {
                sleep(Duration::from_millis(50)).await;
            }
        }
        servers
    }

    pub(crate) fn ports(&self) -> Vec<u16> {
        self.all.iter().map(Server::port).collect()
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.all.iter().map(Server::url).collect()
    }

    /// Starts a server that was killed.
    pub(crate) async fn restart(&self, at: usize, memory: Memory) {
        let data = self.data(at);
        if memory != Memory::Saved {
            fs::remove_dir_all(&data).expect("the data of a server");
        }
        if memory == Memory::Older {
            copy_files(&self.copy_of(at), &data).expect("a copy of the data");
        }
        self.all[at].restart().await;
    }

    /// Leaves a server alone that was started again, until it can grant locks. Fails if no client uses it
    /// then.
    pub(crate) async fn returned(&self, at: usize) -> Result<(), String> {
        let started = Instant::now();
        sleep(LEFT_ALONE).await;
        while !self.all[at].calls().await.contains_key("script|load") {
            if started.elapsed() > LONGEST_RETURN {
                return Err(format!(
                    "nobody used server {at} for {LONGEST_RETURN:?} after it came back"
                ));
            }
            sleep(Duration::from_millis(50)).await;
        }
        self.copy(at);
        Ok(())
    }

    async fn age(&self, at: usize) -> u64 {
        let info = self.all[at].info("server").await;
        info["uptime_in_seconds"].parse().expect("a number")
    }

    /// Keeps a copy of what the server has saved now.
    fn copy(&self, at: usize) {
        let copy = self.copy_of(at);
        let _ = fs::remove_dir_all(&copy);
        copy_files(&self.data(at), &copy).expect("the data of a server");
    }

    fn copy_of(&self, at: usize) -> PathBuf {
        self.copies.path().join(at.to_string())
    }

    fn data(&self, at: usize) -> PathBuf {
        self.all[at].dir().join(DATA)
    }
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}
