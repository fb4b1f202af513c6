//! A real cluster. By default it has three masters with a replica each.

use std::time::Duration;

use crate::eventually;
use crate::resp::Resp;
use crate::server::Server;

/// How long the servers wait for each other before a failover begins.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(2);

const SLOTS: usize = 16_384;

/// The servers. The first ones start as masters, with the same number of slots each. The others start as
/// replicas: the first of the first master, and so on.
#[derive(Debug)]
pub struct Cluster {
    pub servers: Vec<Server>,
    masters: usize,
}

impl Cluster {
    /// Three masters with a replica each.
    pub async fn start() -> Cluster {
        Cluster::of(3, 3, &[]).await
    }

    /// Masters without replicas.
    pub async fn of_masters(masters: usize) -> Cluster {
        Cluster::of(masters, 0, &[]).await
    }

    /// Three masters with so many databases, if the installed server can have them in a cluster.
    pub async fn with_databases(databases: u8) -> Option<Cluster> {
        let info = Server::shared().await.info("server").await;
        let major = info
            .get("valkey_version")?
            .split('.')
            .next()?
            .parse::<u32>()
            .ok()?;
        if major < 9 {
            return None;
        }
        let settings = [("cluster-databases", &*databases.to_string())];
        Some(Cluster::of(3, 0, &settings).await)
    }

    async fn of(masters: usize, replicas: usize, settings: &[(&str, &str)]) -> Cluster {
        let mut servers = Vec::new();
        for _ in 0..masters + replicas {
            let timeout = NODE_TIMEOUT.as_millis().to_string();
            let builder = Server::builder()
                .config("cluster-enabled", "yes")
                .config("cluster-node-timeout", &timeout)
                .config("cluster-replica-validity-factor", "0")
                .config("repl-diskless-sync-delay", "0");
            let builder = settings
                .iter()
                .fold(builder, |builder, (key, value)| builder.config(key, value));
            servers.push(builder.start().await);
        }
        let cluster = Cluster { servers, masters };
        cluster.meet().await;
        cluster
    }

    async fn meet(&self) {
        let masters = self.masters;
        let replicas = self.servers.len() - masters;
        for (i, server) in self.servers.iter().enumerate() {
            ok(server, &["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]).await;
            if i < masters {
                let slots: Vec<String> = (SLOTS * i / masters..SLOTS * (i + 1) / masters)
                    .map(|slot| slot.to_string())
                    .collect();
                let mut words = vec!["CLUSTER", "ADDSLOTS"];
                words.extend(slots.iter().map(String::as_str));
                ok(server, &words).await;
            }
        }
        for other in &self.servers[1..] {
            let port = other.port().to_string();
            ok(&self.servers[0], &["CLUSTER", "MEET", "127.0.0.1", &port]).await;
        }
        eventually("all nodes know each other", Duration::from_secs(30), async || {
            let all = self.servers.len();
            let mut knowing = 0;
            for server in &self.servers {
                let known = self.info(server, "cluster_known_nodes").await;
                knowing += usize::from(known == all.to_string());
            }
            knowing == all
        })
        .await;
        for i in 0..replicas {
            let master = self.id(i).await;
            eventually("a replica follows", Duration::from_secs(30), async || {
                let reply = self.servers[i + masters]
                    .command(&["CLUSTER", "REPLICATE", &master])
                    .await;
                matches!(reply, Resp::Text(text) if text == "OK")
            })
            .await;
        }
        eventually("the cluster is whole", Duration::from_secs(30), async || {
            for (i, server) in self.servers.iter().enumerate() {
                let replication = server.info("replication").await;
                let followers = usize::from(i < replicas).to_string();
                let linked = i < masters && replication["connected_slaves"] == followers
                    || i >= masters
                        && replication
                            .get("master_link_status")
                            .is_some_and(|status| status == "up");
                if !linked || self.info(server, "cluster_state").await != "ok" {
                    return false;
                }
            }
            true
        })
        .await;
    }

    async fn info(&self, server: &Server, key: &str) -> String {
        let text = server.command(&["CLUSTER", "INFO"]).await.text().to_owned();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        value.unwrap_or_default().trim().to_owned()
    }

    /// The id of a server within the cluster.
    pub async fn id(&self, server: usize) -> String {
        self.servers[server]
            .command(&["CLUSTER", "MYID"])
            .await
            .text()
            .to_owned()
    }

    /// A URL with up to two of the servers, so that one of them may be down.
    pub fn url(&self) -> String {
        let mut ports = self.servers.iter().map(Server::port);
        let one = ports.next().expect("a server");
        match ports.next() {
            Some(other) => format!("redis-cluster://127.0.0.1:{one}?node=127.0.0.1:{other}"),
            None => format!("redis-cluster://127.0.0.1:{one}"),
        }
    }

    /// The slot of a key.
    pub async fn slot(&self, key: &str) -> usize {
        let slot = self.servers[0].command(&["CLUSTER", "KEYSLOT", key]).await.int();
        usize::try_from(slot).expect("a slot")
    }

    /// The index of the one of three masters that has the slot at the start.
    pub fn first_owner(slot: usize) -> usize {
        (0..3).find(|i| slot < SLOTS * (i + 1) / 3).expect("a slot")
    }

    /// Moves a slot with all its keys, one key at a time, as an operator's tools do. The servers redirect
    /// calls meanwhile. There is a `pause` between two steps.
    pub async fn migrate(&self, slot: usize, from: usize, to: usize, pause: Duration) {
        self.send_off(slot, from, to, pause).await;
        self.assign(slot, from, to).await;
    }

    /// The first part of a move: both servers know of it, and no key has moved.
    pub async fn announce(&self, slot: usize, from: usize, to: usize) {
        let (source, target) = (&self.servers[from], &self.servers[to]);
        let (from_id, to_id) = (self.id(from).await, self.id(to).await);
        let slot = slot.to_string();
        ok(target, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).await;
        ok(source, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).await;
    }

    /// The first two parts of a move: all keys have moved, but the slot has not.
    pub async fn send_off(&self, slot: usize, from: usize, to: usize, pause: Duration) {
        let (source, target) = (&self.servers[from], &self.servers[to]);
        self.announce(slot, from, to).await;
        let slot = slot.to_string();
        tokio::time::sleep(pause).await;
        let port = target.port().to_string();
        loop {
            let keys = source
                .command(&["CLUSTER", "GETKEYSINSLOT", &slot, "1"])
                .await
                .texts();
            let Some(key) = keys.first() else { break };
            let moved = source
                .command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"])
                .await;
            assert!(
                matches!(&moved, Resp::Text(text) if text == "OK" || text == "NOKEY"),
                "{moved:?}"
            );
            tokio::time::sleep(pause).await;
        }
    }

    /// The last part of a move.
    pub async fn assign(&self, slot: usize, from: usize, to: usize) {
        let (slot, id) = (slot.to_string(), self.id(to).await);
        for server in [to, from] {
            ok(&self.servers[server], &["CLUSTER", "SETSLOT", &slot, "NODE", &id]).await;
        }
    }

    /// How often all servers together have run a command.
    pub async fn calls(&self, command: &str) -> u64 {
        let mut calls = 0;
        for server in &self.servers {
            calls += server.calls().await.get(command).copied().unwrap_or_default();
        }
        calls
    }
}

async fn ok(server: &Server, words: &[&str]) {
    let reply = server.command(words).await;
    assert!(
        matches!(&reply, Resp::Text(text) if text == "OK"),
        "{:?}: {reply:?}",
        &words[..2]
    );
}
