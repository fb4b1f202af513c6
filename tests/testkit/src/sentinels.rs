//! A primary, two replicas, and three sentinels that watch over them.

use std::collections::HashMap;
use std::time::Duration;

use crate::authority::Authority;
use crate::eventually;
use crate::proxy::Proxy;
use crate::resp::Resp;
use crate::server::{Server, ServerBuilder, info_lines};

/// The name by which the sentinels know the primary.
pub const SERVICE: &str = "main";

const LIMIT: Duration = Duration::from_secs(60);
/// How long a sentinel does nothing after it could not run for 2 s, in ms: time to hear of all servers again.
/// Redis calls this TILT, and by default it is 30 s, which outlasts the leases of the tests.
const TILT_MS: &str = "2000";

/// The servers, one of which is the primary, and their sentinels.
#[derive(Debug)]
pub struct Sentinels {
    pub servers: Vec<Server>,
    pub sentinels: Vec<Server>,
    /// The proxy through which all others, clients included, reach the first server.
    pub network: Option<Proxy>,
}

/// The differences from a plain set.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setup<'a> {
    /// The password of the servers, and that of the sentinels.
    pub passwords: Option<(&'a str, &'a str)>,
    /// Whether there is a proxy in front of the first server, which is the primary.
    pub network: bool,
    /// With an authority, all servers use TLS, and clients must show a certificate of this authority.
    pub authority: Option<&'a Authority>,
    pub config: &'a [(&'a str, &'a str)],
    /// By how many seconds the clocks of the replicas are ahead.
    pub replicas_ahead: i64,
}

impl Sentinels {
    pub async fn start() -> Sentinels {
        Sentinels::with(Setup::default()).await
    }

    pub async fn with(setup: Setup<'_>) -> Sentinels {
        let by_tls = |builder: ServerBuilder| match setup.authority {
            Some(authority) => builder.tls(authority).config("tls-replication", "yes"),
            None => builder,
        };
        let data = || {
            // Otherwise the primary delays the first transfer by five seconds, in case other replicas ask for
            // it too.
            let builder = by_tls(Server::builder()).config("repl-diskless-sync-delay", "0");
            let config = setup.config.iter();
            let builder = config.fold(builder, |builder, (key, value)| builder.config(key, value));
            match setup.passwords {
                None => builder,
                Some((servers, _)) => builder
                    .config("requirepass", servers)
                    .config("masterauth", servers),
            }
        };
        let primary = data().start().await;
        let network = setup.network.then(|| Proxy::start(port(&primary)));
        let primary_port = network.as_ref().map_or(port(&primary), Proxy::port);
        let replica = async || {
            let builder = data().config("replicaof", &format!("127.0.0.1 {primary_port}"));
            let builder = match setup.replicas_ahead {
                0 => builder,
                seconds => builder.clock(seconds),
            };
            builder.start().await
        };
        let servers = vec![replica().await, replica().await];
        let mut lines = format!(
            "sentinel monitor {SERVICE} 127.0.0.1 {primary_port} 2\n\
             sentinel down-after-milliseconds {SERVICE} 500\n\
             sentinel failover-timeout {SERVICE} 4000\n\
             sentinel parallel-syncs {SERVICE} 2\n"
        );
        if let Some((servers, sentinels)) = setup.passwords {
            lines += &format!("requirepass {sentinels}\nsentinel auth-pass {SERVICE} {servers}\n");
        }
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(by_tls(Server::sentinel(&lines)).start().await);
        }
        let mut group = Sentinels {
            servers,
            sentinels,
            network,
        };
        group.servers.insert(0, primary);
        if setup.passwords.is_none() {
            for sentinel in &group.sentinels {
                // Redis 6.2 has no such command.
                sentinel
                    .command(&["SENTINEL", "DEBUG", "tilt-period", TILT_MS])
                    .await;
            }
            group.settled().await;
        }
        group
    }

    /// Stops the replicas, so that the primary's writes do not reach them until they are resumed.
    pub async fn pause_replicas(&self, primary: usize) -> Vec<&Server> {
        let servers = self.servers.iter().enumerate();
        let replicas = servers.filter(|(index, _)| *index != primary);
        let replicas: Vec<&Server> = replicas.map(|(_, server)| server).collect();
        replicas.iter().for_each(|replica| replica.pause());
        self.servers[primary]
            .command(&["CLIENT", "KILL", "TYPE", "replica"])
            .await;
        replicas
    }

    pub fn url(&self) -> String {
        self.url_by(self.sentinels.iter().map(port))
    }

    /// The URL of a client that reaches the sentinels by these ports.
    pub fn url_by(&self, ports: impl Iterator<Item = u16>) -> String {
        let nodes: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
        let (first, others) = nodes.split_first().expect("a sentinel");
        let others: String = others.iter().map(|node| format!("&node={node}")).collect();
        let scheme = match self.sentinels[0].tls_port() {
            Some(_) => "rediss-sentinel",
            None => "redis-sentinel",
        };
        format!("{scheme}://{first}?sentinelServiceName={SERVICE}{others}")
    }

    /// The port at which others find this server.
    fn port(&self, server: usize) -> u16 {
        match &self.network {
            Some(proxy) if server == 0 => proxy.port(),
            _ => port(&self.servers[server]),
        }
    }

    /// Returns the index of the server that the first sentinel names.
    pub async fn primary(&self) -> usize {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
        let port = self.sentinels[0].command(&words).await.array()[1]
            .text()
            .to_owned();
        (0..self.servers.len())
            .find(|server| self.port(*server).to_string() == port)
            .expect("one of ours")
    }

    /// Waits until both replicas follow the primary, and every sentinel knows all servers and the other
    /// sentinels.
    pub async fn settled(&self) {
        eventually("the replicas follow and the sentinels agree", LIMIT, async || {
            let primary = self.primary().await;
            for (index, server) in self.servers.iter().enumerate() {
                let info = info(server, "replication").await;
                let follows = info.get("master_link_status").map(String::as_str) == Some("up")
                    && info.get("master_port") == Some(&self.port(primary).to_string());
                if follows == (index == primary) {
                    return false;
                }
            }
            for sentinel in &self.sentinels {
                let info = sentinel.info("sentinel").await;
                let line = info.get("master0").cloned().unwrap_or_default();
                let address = format!("address=127.0.0.1:{}", self.port(primary));
                let all = ["status=ok", "slaves=2", "sentinels=3", &address];
                if !all.iter().all(|part| line.contains(part)) {
                    return false;
                }
            }
            true
        })
        .await;
    }

    /// Waits until the replicas have every write of the primary.
    pub async fn replicated(&self) {
        let primary = &self.servers[self.primary().await];
        eventually("the replicas have everything", LIMIT, async || {
            let info = info(primary, "replication").await;
            let offset = format!("offset={},", info["master_repl_offset"]);
            ["slave0", "slave1"]
                .iter()
                .all(|replica| info.get(*replica).is_some_and(|line| line.contains(&offset)))
        })
        .await;
    }

    /// Makes this server follow the primary, as the sentinels would do after a while.
    pub async fn follow(&self, server: usize, primary: usize) {
        let port = self.port(primary).to_string();
        ask(&self.servers[server], &["REPLICAOF", "127.0.0.1", &port]).await;
    }

    /// Waits until the first sentinel names another server than this one, and returns that server.
    pub async fn switched(&self, former: usize) -> usize {
        eventually("a failover", LIMIT, async || self.primary().await != former).await;
        self.primary().await
    }

    /// How many failovers a sentinel has seen. On a busy machine, one can follow another.
    pub fn switches(&self) -> usize {
        let seen = self
            .sentinels
            .iter()
            .map(|sentinel| sentinel.log().matches("+switch-master").count());
        seen.max().unwrap_or_default()
    }
}

/// A failed test shows what the sentinels did. After a TILT, a sentinel may refuse all replicas,
/// since they lost the primary so long ago.
impl Drop for Sentinels {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for sentinel in &self.sentinels {
                eprintln!("{}", sentinel.log());
            }
        }
    }
}

/// The port at which others find this server if it has no proxy.
fn port(server: &Server) -> u16 {
    server.tls_port().unwrap_or(server.port())
}

async fn info(server: &Server, section: &str) -> HashMap<String, String> {
    info_lines(ask(server, &["INFO", section]).await.text())
}

/// Sends one command, and repeats it if the connection breaks: a server that a sentinel turns into a replica
/// closes all its connections.
async fn ask(server: &Server, words: &[&str]) -> Resp {
    loop {
        if let Ok(reply) = server.client().await.command(words).await {
            return reply;
        }
    }
}
