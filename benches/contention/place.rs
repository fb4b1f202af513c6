//! The servers of a comparison: servers that the program starts, in one of four topologies; a server that
//! runs already; or for some peers a server of another kind.

use std::path::Path;
use std::time::{Duration, Instant};

use fairlock_benches::info::field;
use fairlock_benches::wire::Wire;
use fairlock_benches::{Outcome, delay};
use fairlock_testkit::{Cluster, Sentinels, Server, ServerBuilder};

use crate::args::CompareArgs;
use crate::condition::Condition;
use crate::cost::Cost;
use crate::others::Other;
use crate::peer::Kind;
use crate::topology::Topology;

/// The longest time that the PINGs of one server take.
const PING_LIMIT: Duration = Duration::from_secs(1);

/// The servers of a kind, under a condition. Those that were started end when this value is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    pub(crate) condition: Condition,
    /// Product and version.
    pub(crate) version: String,
    own: Own,
    /// The URL that clients connect to, perhaps through a delay; in a quorum all of them, with commas
    /// between.
    url: String,
    /// The URL of the lock's server, or of all in a quorum, perhaps through the same delay.
    pings: Vec<String>,
    /// The servers themselves, with replicas but without sentinels.
    servers: Vec<String>,
}

/// What was started.
#[derive(Debug)]
#[expect(dead_code, reason = "most are only kept to end them")]
enum Own {
    Nothing,
    Server(Server),
    Sentinels(Sentinels),
    Cluster(Cluster),
    Quorum(Vec<Server>),
    Other(Other),
}

impl Place {
    /// The servers that the arguments ask for. Topology and URL only matter for Redis.
    pub(crate) async fn of(kind: Kind, condition: Condition, args: &CompareArgs) -> Outcome<Place> {
        let mut place = match (kind, &args.url, Other::start(kind, &args.programs)?) {
            (_, _, Some(other)) => Place::of_other(kind, other),
            (Kind::Redis, Some(url), None) => Place::new(Own::Nothing, url.clone(), vec![url.clone()]),
            (Kind::Redis, None, None) => Place::start(args).await?,
            (Kind::Valkey9, _, None) => Place::start_valkey(&args.programs).await?,
            (_, _, None) => Place::start_standalone(Server::builder()).await,
        };
        (place.kind, place.condition) = (kind, condition);
        place.look()?;
        let delays: Vec<Duration> = (0..place.pings.len())
            .map(|server| args.delay(condition, server))
            .collect();
        if delays.iter().any(|delay| !delay.is_zero()) {
            for (url, delay) in place.pings.iter_mut().zip(delays) {
                let address = address(url);
                let proxy = delay::start(address, delay)?;
                *url = url.replacen(address, &proxy.to_string(), 1);
            }
            place.url = place.pings.join(",");
        }
        Ok(place)
    }

    /// Checks that there is a Redis server, reads its version, and makes it publish events if the kind needs
    /// them.
    fn look(&mut self) -> Outcome<()> {
        let direct = &self.servers[0];
        if !self.kind.is_redis() {
            return Ok(());
        }
        let info = Wire::connect(direct)
            .and_then(|mut wire| wire.command(&["INFO", "server"]))
            .map_err(|e| format!("no server to measure at {direct}: {e}"))?;
        let redis = || format!("Redis {}", field(&info, "redis_version").unwrap_or("?"));
        let valkey = field(&info, "valkey_version").map(|version| format!("Valkey {version}"));
        self.version = valkey.unwrap_or_else(redis);
        if self.kind == Kind::RedisEvents {
            Wire::connect(direct)?.command(&["CONFIG", "SET", "notify-keyspace-events", "KA"])?;
        }
        Ok(())
    }

    fn of_other(kind: Kind, other: Other) -> Place {
        let (url, version) = (other.url.clone(), other.version.clone());
        Place {
            kind,
            version,
            ..Place::new(Own::Other(other), url.clone(), vec![url])
        }
    }

    async fn start(args: &CompareArgs) -> Outcome<Place> {
        check_installed()?;
        Ok(match args.topology {
            Topology::Standalone => Place::start_standalone(Server::builder()).await,
            Topology::Sentinel => {
                let set = Sentinels::start().await;
                let (url, urls) = (set.url(), urls(&set.servers));
                Place::new(Own::Sentinels(set), url, urls)
            }
            Topology::Cluster => Place::of_cluster(Cluster::start().await),
            Topology::Quorum => {
                let mut servers = Vec::new();
                for _ in 0..args.servers {
                    servers.push(Server::start().await);
                }
                let urls = urls(&servers);
                Place {
                    pings: urls.clone(),
                    ..Place::new(Own::Quorum(servers), urls.join(","), urls)
                }
            }
        })
    }

    async fn start_valkey(programs: &Path) -> Outcome<Place> {
        let program = programs.join("valkey-server");
        if !program.exists() {
            return Err("there is no Valkey 9, which scripts/compare gets on Linux on x86-64".into());
        }
        Ok(Place::start_standalone(Server::builder().program(&program)).await)
    }

    async fn start_standalone(server: ServerBuilder) -> Place {
        let server = server.start().await;
        let urls = vec![server.url()];
        Place::new(Own::Server(server), urls[0].clone(), urls)
    }

    /// A cluster with this number of masters. It has no replicas, because their cost would be counted as that
    /// of the masters.
    pub(crate) async fn of_masters(masters: u32) -> Outcome<Place> {
        check_installed()?;
        Ok(Place::of_cluster(Cluster::of_masters(masters as usize).await))
    }

    fn of_cluster(cluster: Cluster) -> Place {
        let (url, urls) = (cluster.url(), urls(&cluster.servers));
        Place::new(Own::Cluster(cluster), url, urls)
    }

    fn new(own: Own, url: String, servers: Vec<String>) -> Place {
        Place {
            kind: Kind::Redis,
            condition: Condition::Near,
            version: String::new(),
            own,
            url,
            pings: vec![servers[0].clone()],
            servers,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The median round trip of a PING; zero if the server has no such command. In a quorum it is that of the
    /// last server of the nearest majority, which is the second-nearest of three.
    pub(crate) fn ping(&self, tries: usize) -> std::io::Result<Duration> {
        if !self.kind.is_redis() {
            return Ok(Duration::ZERO);
        }
        let mut medians = Vec::new();
        for url in &self.pings {
            let (mut wire, begun) = (Wire::connect(url)?, Instant::now());
            let mut took = Vec::new();
            while took.len() < tries && begun.elapsed() < PING_LIMIT {
                took.extend(wire.ping(1)?);
            }
            took.sort_unstable();
            medians.push(took.get(took.len() / 2).copied().unwrap_or_default());
        }
        medians.sort_unstable();
        Ok(medians[medians.len() / 2])
    }

    /// Makes the server fail that the condition names. It is the first one of a quorum.
    pub(crate) fn disturb(&self) {
        match (&self.own, self.condition) {
            (Own::Quorum(servers), Condition::Down) => servers[0].kill(),
            (Own::Quorum(servers), Condition::Hung) => servers[0].pause(),
            _ => {}
        }
    }

    /// Makes that server well again. If it was killed, it has forgotten all locks, so this may only be called
    /// after the end of the clients: they take the servers for durable.
    pub(crate) async fn repair(&self) {
        match (&self.own, self.condition) {
            (Own::Quorum(servers), Condition::Down) => servers[0].restart().await,
            (Own::Quorum(servers), Condition::Hung) => servers[0].resume(),
            _ => {}
        }
    }

    /// The cost on each server so far, but for the one that [`disturb`](Place::disturb) makes fail.
    pub(crate) fn costs(&self) -> Outcome<Vec<Cost>> {
        let failing = usize::from(matches!(self.condition, Condition::Down | Condition::Hung));
        match &self.own {
            Own::Other(other) => Ok(vec![Cost {
                commands: 0,
                cpu: other.cpu(),
            }]),
            _ => self.servers[failing..].iter().map(|url| Cost::of(url)).collect(),
        }
    }
}

/// The `host:port` of a URL, or of an address without a scheme.
fn address(url: &str) -> &str {
    let place = url.split_once("://").map_or(url, |(_, rest)| rest);
    let place = place.split(['/', '?']).next().unwrap_or(place);
    place.rsplit_once('@').map_or(place, |(_, address)| address)
}

fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(Server::url).collect()
}

fn check_installed() -> Outcome<()> {
    match Server::is_installed() {
        true => Ok(()),
        false => Err(
            "neither redis-server nor valkey-server is on the PATH: install one (scripts/install-server), or name a \
             running server with --url"
                .into(),
        ),
    }
}
