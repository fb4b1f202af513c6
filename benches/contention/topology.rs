//! Where the locks of a comparison live: servers of one's own, arranged in one of three ways, or one that runs already.

use std::time::Duration;

use crate::Outcome;
use crate::args::CompareArgs;
use crate::delay;
use crate::support::{Cluster, Sentinels, Server};
use crate::wire::{self, Wire};

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

/// The servers at hand. Those that were started for it end with this value.
#[derive(Debug)]
pub(crate) struct Place {
    /// Kept for their ends.
    _own: Own,
    /// What clients connect to, perhaps through a delay.
    url: String,
    /// What the lock's server is reached by, likewise.
    ping: String,
    /// The servers themselves, replicas too, sentinels not.
    servers: Vec<String>,
}

/// What was started.
#[derive(Debug)]
#[expect(dead_code, reason = "ended, not asked")]
enum Own {
    Nothing,
    Server(Server),
    Sentinels(Sentinels),
    Cluster(Cluster),
}

impl Place {
    /// What the arguments ask for.
    pub(crate) async fn of(args: &CompareArgs) -> Outcome<Place> {
        let mut place = match &args.url {
            Some(url) => Place::new(Own::Nothing, url.clone(), vec![url.clone()]),
            None => Place::start(args.topology).await?,
        };
        let direct = &place.servers[0];
        Wire::connect(direct)
            .and_then(|mut wire| wire.ping(1))
            .map_err(|e| format!("no server to measure at {direct}: {e}"))?;
        if args.delay_us > 0 {
            let address = wire::address(direct)?;
            let proxy = delay::start(address, Duration::from_micros(args.delay_us))?;
            place.url = direct.replacen(address, &proxy.to_string(), 1);
            place.ping.clone_from(&place.url);
        }
        Ok(place)
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

    /// A cluster of so many masters, without replicas: what they cost would be counted as the masters'.
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
            _own: own,
            url,
            ping: servers[0].clone(),
            servers,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn ping(&self, tries: usize) -> std::io::Result<Vec<Duration>> {
        Wire::connect(&self.ping)?.ping(tries)
    }

    pub(crate) fn servers(&self) -> &[String] {
        &self.servers
    }
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
