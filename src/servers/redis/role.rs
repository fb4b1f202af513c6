//! What a server says that it is, and whether locks can be kept on it.
//!
//! The reply to `HELLO` tells the mode and the role of a server
//! (<https://redis.io/docs/latest/commands/hello/>). Any user may send it. A server that does not know it,
//! such as some proxies, is not checked. With sentinels, the reply to `ROLE` must come.

use std::collections::HashMap;
use std::sync::Mutex;

use fred::interfaces::ClientLike;
use fred::types::{ClusterHash, CustomCommand, InfoKind, Value};

use super::connection::{Connection, named_in};
use super::failure;
use super::server_info::field;
use crate::protocol::interface::Failure;
use crate::sync::locked;
use crate::types::error::ServerError;

/// Why a server is unfit, and what helps: the URL of a client of one server, and in a quorum nothing.
const NODE: (&str, &str) = (
    "a node of a cluster, which has a part of the locks",
    "the URL must begin with redis-cluster:// (with TLS: rediss-cluster://)",
);
const SENTINEL: (&str, &str) = (
    "a sentinel, which keeps no locks",
    "the URL must be redis-sentinel://HOST:PORT?sentinelServiceName=NAME",
);
const REPLICA: (&str, &str) = (
    "a replica, whose locks the next synchronisation takes away",
    "the URL must name its primary, or the sentinels that know it",
);
const INDEPENDENT: &str = "a quorum is made of servers that have nothing to do with each other";

/// What a server has to be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expected {
    /// Anything. What it answers shows what it is.
    Anything,
    /// The primary that the sentinels name.
    Primary,
    /// A server that keeps all locks by itself.
    Alone { in_quorum: bool },
}

impl Expected {
    pub(super) async fn check(self, connection: &mut Connection) -> Result<(), Failure> {
        match self {
            Expected::Anything => Ok(()),
            Expected::Primary => check_primary(connection).await,
            Expected::Alone { in_quorum } => check_alone(connection, in_quorum).await,
        }
    }
}

/// Makes sure that the server itself reports that it is a primary.
async fn check_primary(connection: &mut Connection) -> Result<(), Failure> {
    let client = connection.client().clone();
    let asked = async {
        let command = CustomCommand::new_static("ROLE", ClusterHash::Random, false);
        let role = client.custom::<Value, &str>(command, Vec::new()).await;
        role.map_err(|error| failure::classify(&error))
    };
    match connection.unless_lost(asked).await? {
        Value::Array(parts) if parts.first().and_then(Value::as_str).as_deref() == Some("master") => Ok(()),
        _ => Err(Failure::NotExecuted(ServerError::new(
            "the sentinels name it, but it is no primary",
        ))),
    }
}

/// Refuses a server that keeps no locks, or not all of them. A replica is not refused: it may become the
/// primary, and its name may have the address of the primary too, or lead there soon.
async fn check_alone(connection: &mut Connection, in_quorum: bool) -> Result<(), Failure> {
    let client = connection.client().clone();
    let said = async {
        let hello = CustomCommand::new_static("HELLO", ClusterHash::Random, false);
        said(client.custom::<Value, &str>(hello, Vec::new()).await)
    };
    let Some(said) = connection.unless_lost(said).await? else {
        return Ok(());
    };
    let (mode, role) = (named_in(&said, "mode"), named_in(&said, "role"));
    let why = |(what, advice)| {
        let advice = if in_quorum { INDEPENDENT } else { advice };
        ServerError::new(format!("this server is {what}: {advice}"))
    };
    match (mode.as_deref(), role.as_deref()) {
        (Some("cluster"), _) => Err(Failure::Refused(why(NODE))),
        (Some("sentinel"), _) => Err(Failure::Refused(why(SENTINEL))),
        (_, Some("replica" | "slave")) => Err(Failure::NotExecuted(why(REPLICA))),
        _ => Ok(()),
    }
}

/// What a server says of itself, unless it does not know the command, or refuses it to this user.
fn said<T>(reply: Result<T, fred::error::Error>) -> Result<Option<T>, Failure> {
    match reply {
        Ok(said) => Ok(Some(said)),
        Err(error) => match failure::classify(&error) {
            lost @ Failure::Unknown(_) => Err(lost),
            _ => Ok(None),
        },
    }
}

/// The servers of a quorum, by the ids that they choose at each start. Two URLs may lead to one server
/// without looking alike, and its vote must not count twice.
#[derive(Debug, Default)]
pub(crate) struct DistinctServers {
    /// The id of the server behind each address, and the first addresses of those that were refused.
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    ids: HashMap<String, String>,
    doubled: Option<ServerError>,
}

impl DistinctServers {
    /// Refuses a server that is known by another address. A server that tells no id is not checked.
    pub(super) async fn check(&self, connection: &mut Connection, address: &str) -> Result<(), Failure> {
        let client = connection.client().clone();
        let info = async { said(client.info::<String>(Some(InfoKind::Server)).await) };
        let info = connection.unless_lost(info).await?.unwrap_or_default();
        match field(&info, "run_id") {
            Some(id) => self.learn(address, id),
            None => Ok(()),
        }
    }

    fn learn(&self, address: &str, id: &str) -> Result<(), Failure> {
        let mut known = locked(&self.known);
        let other = known
            .ids
            .iter()
            .find(|(other, known)| *other != address && *known == id);
        let Some((other, _)) = other else {
            known.ids.insert(address.to_owned(), id.to_owned());
            return Ok(());
        };
        let error = ServerError::new(format!("this server is also that of {other}: {INDEPENDENT}"));
        known.doubled = Some(ServerError::new(format!("{address}: {error}")));
        Err(Failure::Refused(error))
    }

    /// The refusal of a server that has two addresses, if there was one.
    pub(crate) fn doubled(&self) -> Option<ServerError> {
        locked(&self.known).doubled.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_behind_two_addresses_is_refused_until_one_leads_elsewhere() {
        let servers = DistinctServers::default();
        servers.learn("a:1", "x").unwrap();
        servers.learn("b:1", "y").unwrap();
        let Err(Failure::Refused(error)) = servers.learn("c:1", "x") else {
            panic!("it counts twice")
        };
        assert!(error.to_string().contains("that of a:1"), "{error}");
        assert!(servers.doubled().unwrap().to_string().starts_with("c:1: "));
        // A restart gives a server another id, also while the address is the same.
        servers.learn("a:1", "z").unwrap();
        servers.learn("c:1", "x").unwrap();
    }
}
