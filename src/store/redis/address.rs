//! Parses a URL: the location of the server, and the credentials.

use std::borrow::Cow;
use std::fmt;

use fred::types::RespVersion;
use fred::types::config::{Server, ServerConfig};
use percent_encoding::percent_decode_str;
use url::Url;

use crate::error::Invalid;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// A server and the credentials for it.
pub(super) struct Address {
    pub(super) place: Place,
    pub(super) tls: bool,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: Option<u8>,
    pub(super) protocol: RespVersion,
}

pub(super) enum Place {
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
        read(text).map_err(|why| Invalid::new(format!("server URL {:?}: {why}", without_password(text))))
    }
}

/// The server's location, for people.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            #[cfg(unix)]
            Place::Server(ServerConfig::Unix { path }) => path.display().fmt(f),
            Place::Server(server) => server.hosts().into_iter().try_for_each(|host| host.fmt(f)),
            Place::Cluster(nodes) => nodes[0].fmt(f),
            Place::Sentinels(group) => write!(f, "{} of sentinel {}", group.service, group.hosts[0]),
        }
    }
}

fn read(text: &str) -> Result<Address, Cow<'static, str>> {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    let (kind, tls) = match scheme {
        Some("redis" | "valkey") => (Kind::Server, false),
        Some("rediss" | "valkeys") => (Kind::Server, true),
        Some("redis-cluster" | "valkey-cluster") => (Kind::Cluster, false),
        Some("rediss-cluster" | "valkeys-cluster") => (Kind::Cluster, true),
        Some("redis-sentinel" | "valkey-sentinel") => (Kind::Sentinels, false),
        Some("rediss-sentinel" | "valkeys-sentinel") => (Kind::Sentinels, true),
        Some("unix" | "redis+unix" | "valkey+unix") => (Kind::Socket, false),
        Some(_) => {
            return Err(
                "the scheme must be redis://, rediss://, redis-cluster://, redis-sentinel:// or unix://"
                    .into(),
            );
        }
        None => return Err("must be like redis://user:password@host:6379".into()),
    };
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
    if kind == Kind::Cluster && database.is_some_and(|number| number != 0) {
        return Err("a cluster has the database 0 alone".into());
    }
    Ok(Address {
        tls,
        username: Some(decoded(url.username())?).filter(|name| !name.is_empty()),
        password: url.password().map(decoded).transpose()?,
        // Connections begin with database 0. Selecting it explicitly would need a further permission.
        database: database.filter(|number| *number != 0),
        protocol: match parameter(&url, "protocol").as_deref() {
            None | Some("2") => RespVersion::RESP2,
            Some("3") => RespVersion::RESP3,
            Some(_) => return Err("the protocol must be 2 or 3".into()),
        },
        place: match kind {
            Kind::Server => Place::Server(ServerConfig::Centralized {
                server: host(&url, PORT)?,
            }),
            Kind::Socket => Place::Server(socket(&url)?),
            Kind::Cluster => Place::Cluster(hosts(&url, PORT)?.iter().map(node).collect()),
            Kind::Sentinels => Place::Sentinels(sentinels(&url)?),
        },
    })
}

/// A mistyped parameter must not be ignored.
fn check_parameters(url: &Url, kind: Kind) -> Result<(), String> {
    let known: &[&str] = match kind {
        Kind::Server => &["protocol"],
        Kind::Socket => &["protocol", "db"],
        Kind::Cluster => &["protocol", "node"],
        Kind::Sentinels => &[
            "protocol",
            "node",
            "sentinelServiceName",
            "sentinelUsername",
            "sentinelPassword",
        ],
    };
    match url.query_pairs().find(|(key, _)| !known.contains(&&**key)) {
        Some((key, _)) => Err(format!("there is no parameter {key:?}")),
        None => Ok(()),
    }
}

fn sentinels(url: &Url) -> Result<SentinelGroup, Cow<'static, str>> {
    Ok(SentinelGroup {
        hosts: hosts(url, SENTINEL_PORT)?,
        service: parameter(url, "sentinelServiceName")
            .filter(|name| !name.is_empty())
            .ok_or("must name the primary: ?sentinelServiceName=mymaster")?,
        username: parameter(url, "sentinelUsername"),
        password: parameter(url, "sentinelPassword"),
    })
}

/// The host of the URL, and the hosts of its `node` parameters.
fn hosts(url: &Url, default_port: u16) -> Result<Vec<Server>, Cow<'static, str>> {
    let mut hosts = vec![host(url, default_port)?];
    for (_, node) in url.query_pairs().filter(|(key, _)| key == "node") {
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

/// A URL that may be shown. In a mistyped URL, the password may be anywhere before the last `@`, or in a
/// parameter.
fn without_password(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let (place, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    if parameters.contains('@') {
        // The text belongs to the password or to a parameter.
        return format!("{scheme}***");
    }
    match place.rsplit_once('@') {
        None => format!("{scheme}{place}"),
        Some((_, host)) => format!("{scheme}***@{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_never_shown() {
        for url in [
            "redis://user:s3cret@host:6379",
            "redis://:s3cret@host:port",
            "redis://user:s3c@s3cret@host",
            "redis://user:s3c?s3cret@host",
            "user:s3cret@host",
            "http://user:s3cret@host",
            "redis://host?password=s3cret",
            "redis://host?password=x@s3cret",
            "unix://user:s3cret@host/",
            "redis-sentinel://user:s3cret@host?sentinelPassword=s3cret",
        ] {
            assert!(!without_password(url).contains("s3c"), "{url}");
            if let Err(invalid) = Address::parse(url) {
                assert!(!invalid.to_string().contains("s3c"), "{invalid}");
            }
        }
    }

    #[test]
    fn urls_without_a_server_are_invalid() {
        for url in [
            "",
            "127.0.0.1:6379",
            "http://host",
            "redis://",
            "redis://:6379",
            "redis://host:port",
            "redis://host/x",
            "redis://host/256",
            "redis://host/1/2",
            "redis://host:99999",
            "redis://host?protocol=4",
            "redis://host?db=1",
            "redis://host?timeout=1",
            "redis://%ff@host",
            "redis-cluster://host/1",
            "redis-sentinel://host",
            "redis-sentinel://host?sentinelServiceName=",
            "redis-sentinel://?sentinelServiceName=main",
            "redis-sentinel://host?sentinelServiceName=main&node=",
            "redis-sentinel://host?sentinelServiceName=main&node=host:port",
            "unix:///",
            "unix:///run/redis.sock?db=x",
        ] {
            assert!(Address::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn urls_may_omit_parts_with_a_default() {
        for (url, server) in [
            ("redis://host", "host:6379"),
            ("redis://host:1/", "host:1"),
            ("valkey://user:password@host:1/3", "host:1"),
            ("redis://[::1]:1", "::1:1"),
        ] {
            assert_eq!(Address::parse(url).unwrap().to_string(), server);
        }
    }

    #[cfg(not(any(feature = "rustls", feature = "native-tls")))]
    #[test]
    fn tls_without_its_feature_is_refused_and_the_feature_named() {
        let invalid = Address::parse("rediss://host").err().unwrap();
        assert!(invalid.to_string().contains("feature `rustls`"), "{invalid}");
    }

    #[cfg(any(feature = "rustls", feature = "native-tls"))]
    #[test]
    fn every_part_of_a_url_is_read() {
        let address = Address::parse("valkeys://us%40er:pass%3Aword@host:1/3?protocol=3").unwrap();
        assert!(address.tls);
        assert_eq!(address.to_string(), "host:1");
        assert_eq!(address.username.as_deref(), Some("us@er"));
        assert_eq!(address.password.as_deref(), Some("pass:word"));
        assert_eq!(address.database, Some(3));
        assert_eq!(address.protocol, RespVersion::RESP3);
    }

    #[cfg(unix)]
    #[test]
    fn a_socket_is_named_by_its_path() {
        let address =
            Address::parse("redis+unix://user:password@localhost/run/my%20redis.sock?db=2").unwrap();
        assert_eq!(address.to_string(), "/run/my redis.sock");
        assert_eq!(address.username.as_deref(), Some("user"));
        assert_eq!(address.database, Some(2));
        assert_eq!(Address::parse("unix:///a.sock").unwrap().to_string(), "/a.sock");
    }

    #[test]
    fn servers_of_a_cluster_are_named_each() {
        let address =
            Address::parse("valkey-cluster://user:word@a?node=b:1&node=[::1]:2&protocol=3").unwrap();
        assert_eq!(address.protocol, RespVersion::RESP3);
        assert_eq!(address.username.as_deref(), Some("user"));
        let Place::Cluster(nodes) = address.place else {
            panic!("a cluster")
        };
        let nodes: Vec<_> = nodes.iter().map(Node::to_string).collect();
        assert_eq!(nodes, ["a:6379", "b:1", "::1:2"]);
    }

    #[test]
    fn sentinels_are_named_each_and_have_a_password_of_their_own() {
        let url = "valkey-sentinel://user:word@a/2?node=b:1&node=[::1]:2&sentinelServiceName=main&sentinelPassword=p%40ss";
        let address = Address::parse(url).unwrap();
        assert_eq!(address.password.as_deref(), Some("word"));
        assert_eq!(address.database, Some(2));
        let Place::Sentinels(group) = address.place else {
            panic!("sentinels")
        };
        let hosts: Vec<_> = group.hosts.iter().map(Server::to_string).collect();
        assert_eq!(hosts, ["a:26379", "b:1", "::1:2"]);
        assert_eq!(group.service, "main");
        assert_eq!(group.username, None);
        assert_eq!(group.password.as_deref(), Some("p@ss"));
    }
}
