//! What a server says that it is, and whether locks can be kept on it.
//!
//! The reply to `HELLO` tells the mode and the role of a server
//! (<https://redis.io/docs/latest/commands/hello/>). Any user may send it.

use std::collections::HashMap;
use std::sync::Mutex;

use fred::types::Value;

use super::connection::Line;
use super::resp::named_in;
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
    /// Refuses a server that says this of itself, if it keeps no locks, or not all of them. A replica is not
    /// refused: it may become the primary, and its name may have the address of the primary too, or lead
    /// there soon.
    pub(super) fn judge(self, said: &Value) -> Result<(), Failure> {
        let (mode, role) = (named_in(said, "mode"), named_in(said, "role"));
        let in_quorum = match self {
            Expected::Anything => return Ok(()),
            Expected::Primary if role.as_deref() == Some("master") => return Ok(()),
            Expected::Primary => {
                return Err(Failure::NotExecuted(ServerError::new(
                    "the sentinels name it, but it is no primary",
                )));
            }
            Expected::Alone { in_quorum } => in_quorum,
        };
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
    /// Refuses a server that is known by another address. A server that reports no id is not checked.
    pub(super) async fn check(&self, line: &Line, address: &str) -> Result<(), Failure> {
        let info = match line.call(&["INFO", "server"]).await {
            Ok(info) => info.as_string().unwrap_or_default(),
            Err(lost @ Failure::Unknown(_)) => return Err(lost),
            Err(_) => return Ok(()),
        };
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
    fn what_a_server_says_of_itself_is_judged() {
        let judged = |expected: Expected, mode: &str, role: &str| {
            let said = ["mode", mode, "role", role].map(Value::from);
            expected.judge(&Value::Array(said.into()))
        };
        let alone = [false, true].map(|in_quorum| Expected::Alone { in_quorum });
        for expected in alone {
            assert!(judged(expected, "standalone", "master").is_ok());
            for (mode, role) in [
                ("cluster", "master"),
                ("cluster", "replica"),
                ("sentinel", "sentinel"),
            ] {
                let why = judged(expected, mode, role);
                assert!(matches!(why, Err(Failure::Refused(_))), "{mode} {role}: {why:?}");
            }
            for role in ["replica", "slave"] {
                let why = judged(expected, "standalone", role);
                assert!(matches!(why, Err(Failure::NotExecuted(_))), "{role}: {why:?}");
            }
            // A proxy may say nothing of it.
            assert!(expected.judge(&Value::Null).is_ok());
        }
        assert!(judged(Expected::Primary, "standalone", "master").is_ok());
        for role in ["replica", "slave", ""] {
            let why = judged(Expected::Primary, "standalone", role);
            assert!(matches!(why, Err(Failure::NotExecuted(_))), "{role}: {why:?}");
        }
        assert!(judged(Expected::Anything, "cluster", "replica").is_ok());
    }

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
