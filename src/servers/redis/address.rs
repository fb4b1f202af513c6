//! Parses a URL: the location of the server, and the credentials.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;

use fred::types::config::{Server, ServerConfig};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::types::error::Invalid;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// A server and the credentials for it.
pub(super) struct Address {
    pub(super) target: Target,
    pub(super) tls: bool,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: Option<u8>,
}

pub(super) enum Target {
    Server(ServerConfig),
    /// Some servers of a cluster. They know the others.
    Cluster(Vec<Node>),
    Sentinels(SentinelGroup),
}

/// The address of a server in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) host: String,
    pub(super) port: u16,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Sentinels, which know the server by a service name.
pub(super) struct SentinelGroup {
    pub(super) hosts: Vec<Server>,
    pub(super) service: String,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
}

/// The kind of location that the scheme of a URL names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Server,
    Socket,
    Cluster,
    Sentinels,
}

impl Address {
    /// Parses `redis://[user:password@]host[:port][/database]`, or a URL with another supported scheme.
    pub(super) fn parse(text: &str) -> Result<Address, Invalid> {
        if text.contains('#') {
            // It ends the URL, wherever it is. What is before it may be a part of a password.
            return Err(Invalid::new(
                "server URL: # must be written as %23, in a password too",
            ));
        }
        read(text).map_err(|why| unreadable(text, &why))
    }

    /// Parses a URL that must name one server, and not several that know each other.
    pub(super) fn parse_independent(text: &str) -> Result<Address, Invalid> {
        let address = Address::parse(text)?;
        let named = match &address.target {
            Target::Server(_) => return Ok(address),
            Target::Cluster(_) => "a cluster",
            Target::Sentinels(_) => "sentinels",
        };
        Err(Invalid::new(format!(
            "server URL of {address}: it names {named}, and a quorum is made of independent servers: redis://, \
             rediss:// or unix://"
        )))
    }

    /// The server's location, alike in all URLs that spell it in the same words.
    pub(super) fn identity(&self) -> String {
        match &self.target {
            #[cfg(unix)]
            Target::Server(ServerConfig::Unix { .. }) => self.to_string(),
            _ => self.to_string().to_lowercase(),
        }
    }
}

/// Shows nothing behind the scheme. In a mistyped URL, a password may be anywhere.
fn unreadable(text: &str, why: &str) -> Invalid {
    let is_of_a_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let scheme = scheme_of(text).filter(|scheme| scheme.bytes().all(is_of_a_scheme));
    Invalid::new(match scheme {
        Some(scheme) => format!("server URL \"{scheme}://...\": {why}"),
        None => format!("server URL: {why}"),
    })
}

fn scheme_of(text: &str) -> Option<&str> {
    Some(text.split_once("://")?.0)
}

/// What the scheme names, and whether it asks for TLS.
fn kind_of(scheme: &str) -> Option<(Kind, bool)> {
    Some(match scheme {
        "redis" | "valkey" => (Kind::Server, false),
        "rediss" | "valkeys" => (Kind::Server, true),
        "redis-cluster" | "valkey-cluster" => (Kind::Cluster, false),
        "rediss-cluster" | "valkeys-cluster" => (Kind::Cluster, true),
        "redis-sentinel" | "valkey-sentinel" => (Kind::Sentinels, false),
        "rediss-sentinel" | "valkeys-sentinel" => (Kind::Sentinels, true),
        "unix" | "redis+unix" | "valkey+unix" => (Kind::Socket, false),
        _ => return None,
    })
}

/// The server's location, for people.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            #[cfg(unix)]
            Target::Server(ServerConfig::Unix { path }) => path.display().fmt(f),
            Target::Server(server) => server.hosts().into_iter().try_for_each(|host| host.fmt(f)),
            Target::Cluster(nodes) => nodes[0].fmt(f),
            Target::Sentinels(group) => write!(f, "{} of sentinel {}", group.service, group.hosts[0]),
        }
    }
}

fn read(text: &str) -> Result<Address, Cow<'static, str>> {
    let scheme = scheme_of(text).ok_or("must be like redis://user:password@host:6379")?;
    let (kind, tls) = kind_of(scheme)
        .ok_or("the scheme must be redis://, rediss://, redis-cluster://, redis-sentinel:// or unix://")?;
    if tls && cfg!(not(any(feature = "rustls", feature = "native-tls"))) {
        return Err("TLS needs the feature `rustls` or `native-tls` of this crate".into());
    }
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    check_parameters(&url, kind)?;
    let database = match kind {
        Kind::Socket => parameter(&url, "db"),
        Kind::Server | Kind::Cluster | Kind::Sentinels => {
            Some(url.path().trim_matches('/').to_owned()).filter(|path| !path.is_empty())
        }
    };
    let database = database.map(|number| number.parse::<u8>()).transpose();
    let database = database.map_err(|_| "the database must be a number from 0 to 255")?;
    Ok(Address {
        tls,
        username: Some(decoded(url.username())?).filter(|name| !name.is_empty()),
        password: url
            .password()
            .map(decoded)
            .transpose()?
            .filter(|password| !password.is_empty()),
        // Connections begin with database 0. Selecting it explicitly would need a further permission.
        database: database.filter(|number| *number != 0),
        target: match kind {
            Kind::Server => Target::Server(ServerConfig::Centralized {
                server: host(&url, PORT)?,
            }),
            Kind::Socket => Target::Server(socket(&url)?),
            Kind::Cluster => Target::Cluster(hosts(&url, PORT)?.iter().map(node).collect()),
            Kind::Sentinels => Target::Sentinels(sentinels(&url)?),
        },
    })
}

/// A mistyped parameter must not be ignored.
fn check_parameters(url: &Url, kind: Kind) -> Result<(), String> {
    let known: &[&str] = match kind {
        Kind::Server => &[],
        Kind::Socket => &["db"],
        Kind::Cluster => &["node"],
        Kind::Sentinels => &[
            "node",
            "sentinelServiceName",
            "sentinelUsername",
            "sentinelPassword",
        ],
    };
    // The name may be a part of a password with a question mark.
    if url.query_pairs().any(|(key, _)| !known.contains(&&*key)) {
        let known = match known {
            [] => "there are no parameters".to_owned(),
            known => format!("the only parameters are {}", known.join(", ")),
        };
        return Err(format!("{known} (a ? in a password must be written as %3F)"));
    }
    Ok(())
}

fn sentinels(url: &Url) -> Result<SentinelGroup, Cow<'static, str>> {
    let of_sentinels = |name| parameter(url, name).filter(|value| !value.is_empty());
    let (username, password) = (of_sentinels("sentinelUsername"), of_sentinels("sentinelPassword"));
    if username.is_some() && password.is_none() {
        return Err("sentinelUsername needs a sentinelPassword".into());
    }
    Ok(SentinelGroup {
        hosts: hosts(url, SENTINEL_PORT)?,
        service: parameter(url, "sentinelServiceName")
            .filter(|name| !name.is_empty())
            .ok_or("must name the primary: ?sentinelServiceName=mymaster")?,
        username,
        password,
    })
}

/// The host of the URL, and the hosts of its `node` parameters.
fn hosts(url: &Url, default_port: u16) -> Result<Vec<Server>, Cow<'static, str>> {
    let mut hosts = vec![host(url, default_port)?];
    for (_, node) in url.query_pairs().filter(|(key, _)| key == "node") {
        if node.contains(['@', '/', '?', '#']) {
            return Err("a node must be like host:port, without a user, a path or parameters".into());
        }
        let node = Url::parse(&format!("redis://{node}"));
        let node = node.map_err(|error| format!("a node must be like host:port: {error}"))?;
        hosts.push(host(&node, default_port)?);
    }
    Ok(hosts)
}

fn node(server: &Server) -> Node {
    Node {
        host: server.host.to_string(),
        port: server.port,
    }
}

fn host(url: &Url, default_port: u16) -> Result<Server, &'static str> {
    let host = url
        .host_str()
        .filter(|host| !host.is_empty())
        .ok_or("names no host")?;
    // The resolver does not understand the brackets of an IPv6 address.
    let host = host.trim_matches(['[', ']']);
    Ok(Server::new(host, url.port().unwrap_or(default_port)))
}

#[cfg(unix)]
fn socket(url: &Url) -> Result<ServerConfig, Cow<'static, str>> {
    match decoded(url.path())? {
        path if path.trim_matches('/').is_empty() => Err("names no socket".into()),
        path => Ok(ServerConfig::Unix { path: path.into() }),
    }
}

#[cfg(not(unix))]
fn socket(_: &Url) -> Result<ServerConfig, Cow<'static, str>> {
    Err("this system has no Unix sockets".into())
}

fn parameter(url: &Url, name: &str) -> Option<String> {
    url.query_pairs()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.into_owned())
}

fn decoded(text: &str) -> Result<String, &'static str> {
    percent_decode_str(text)
        .decode_utf8()
        .map(Cow::into_owned)
        .map_err(|_| "must be UTF-8 once its %-escapes are read")
}
