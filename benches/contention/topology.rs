//! The servers of a comparison: servers that the program starts, in one of three topologies; a server that
//! runs already; or for some peers a server of another kind.

use std::time::Duration;

use fairlock_benches::Outcome;
use fairlock_benches::info::field;
use fairlock_benches::wire::Wire;
use fairlock_testkit::{Cluster, Sentinels, Server};

use crate::args::CompareArgs;
use crate::delay;
use crate::others::Other;
use crate::peer::Kind;
use crate::round::Cost;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Topology {
    /// One server
    Standalone,
    /// A primary with two replicas, and three sentinels
    Sentinel,
    /// Three masters with a replica each
    Cluster,
}

impl Topology {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Topology::Standalone => "standalone",
            Topology::Sentinel => "sentinel",
            Topology::Cluster => "cluster",
        }
    }
}

/// The servers of a kind. Those that were started end when this value is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    /// Product and version.
    pub(crate) version: String,
    own: Own,
    /// The URL that clients connect to, perhaps through a delay.
    url: String,
    /// The URL of the lock's server, perhaps through the same delay.
    ping: String,
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
    Other(Other),
}

impl Place {
    /// The servers that the arguments ask for. Topology and URL only matter for Redis.
    pub(crate) async fn of(kind: Kind, args: &CompareArgs) -> Outcome<Place> {
        let mut place = match (kind, &args.url, Other::start(kind, &args.programs)?) {
            (_, _, Some(other)) => Place::of_other(kind, other),
            (Kind::Redis, Some(url), None) => Place::new(Own::Nothing, url.clone(), vec![url.clone()]),
            (Kind::Redis, None, None) => Place::start(args.topology).await?,
            (_, _, None) => Place::start(Topology::Standalone).await?,
        };
        place.kind = kind;
        place.look()?;
        if args.delay_us > 0 {
            let direct = &place.servers[0];
            let address = address(direct);
            let proxy = delay::start(address, Duration::from_micros(args.delay_us))?;
            place.url = direct.replacen(address, &proxy.to_string(), 1);
            place.ping.clone_from(&place.url);
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

    async fn start(topology: Topology) -> Outcome<Place> {
        check_installed()?;
        Ok(match topology {
            Topology::Standalone => {
                let server = Server::start().await;
                let urls = vec![server.url()];
                Place::new(Own::Server(server), urls[0].clone(), urls)
            }
            Topology::Sentinel => {
                let set = Sentinels::start().await;
                let (url, urls) = (set.url(), urls(&set.servers));
                Place::new(Own::Sentinels(set), url, urls)
            }
            Topology::Cluster => Place::of_cluster(Cluster::start().await),
        })
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
            version: String::new(),
            own,
            url,
            ping: servers[0].clone(),
            servers,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The median round trip of a PING; zero if the server has no such command.
    pub(crate) fn ping(&self, tries: usize) -> std::io::Result<Duration> {
        if !self.kind.is_redis() {
            return Ok(Duration::ZERO);
        }
        let mut took = Wire::connect(&self.ping)?.ping(tries)?;
        took.sort_unstable();
        Ok(took.get(tries / 2).copied().unwrap_or_default())
    }

    /// The cost on each server so far.
    pub(crate) fn costs(&self) -> Outcome<Vec<Cost>> {
        match &self.own {
            Own::Other(other) => Ok(vec![Cost {
                commands: 0,
                cpu: other.cpu(),
            }]),
            _ => self.servers.iter().map(|url| Cost::of(url)).collect(),
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
