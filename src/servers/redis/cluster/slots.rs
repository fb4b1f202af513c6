//! Parses a cluster's replies about its slots.

use fred::types::Value as Wire;

use super::super::address::Node;
use super::super::resp::named_in;
use super::super::slot::SLOTS;
use crate::protocol::interface::Failure;

/// Consecutive slots and their servers: the primary first, then its replicas.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) servers: Vec<Node>,
}

/// A server's view of its cluster.
#[derive(Debug)]
pub(super) struct View {
    /// The server, by the address at which it was asked.
    pub(super) of: Node,
    pub(super) ranges: Vec<Range>,
}

/// Parses the reply of the server `asked` to `CLUSTER SLOTS`. Returns `None` if it is another reply.
pub(super) fn ranges(reply: &Wire, asked: &Node) -> Option<Vec<Range>> {
    let Wire::Array(ranges) = reply else { return None };
    ranges.iter().map(|reply| range(reply, asked)).collect()
}

fn range(reply: &Wire, asked: &Node) -> Option<Range> {
    let Wire::Array(parts) = reply else { return None };
    let slot = |part: &Wire| usize::try_from(part.as_i64()?).ok().filter(|slot| *slot < SLOTS);
    let (first, last) = (slot(parts.first()?)?, slot(parts.get(1)?)?);
    let servers: Vec<_> = parts[2..]
        .iter()
        .filter_map(|server| address(server, asked))
        .collect();
    (first <= last && !servers.is_empty()).then_some(Range { first, last, servers })
}

fn address(server: &Wire, asked: &Node) -> Option<Node> {
    let Wire::Array(parts) = server else { return None };
    let host = parts.first().and_then(Wire::as_string).unwrap_or_default();
    let port = u16::try_from(parts.get(1)?.as_i64()?).ok()?;
    Some(host_or_asked(&host, port, asked))
}

/// The host names that servers announce beside their addresses (Redis from 7.0 on).
pub(super) fn host_names(reply: &Wire, asked: &Node) -> Vec<(Node, String)> {
    let Wire::Array(ranges) = reply else {
        return Vec::new();
    };
    let servers = ranges.iter().filter_map(|range| match range {
        Wire::Array(parts) => parts.get(2..),
        _ => None,
    });
    let named = |server: &Wire| Some((address(server, asked)?, host_name(server)?));
    servers.flatten().filter_map(named).collect()
}

fn host_name(server: &Wire) -> Option<String> {
    let Wire::Array(parts) = server else { return None };
    let name = named_in(parts.get(3)?, "hostname")?;
    (!name.is_empty() && name != "?").then_some(name)
}

/// A server that does not know its own name leaves it out. Then the name that was used to ask it counts.
fn host_or_asked(host: &str, port: u16, asked: &Node) -> Node {
    let host = match host {
        "" | "?" => asked.host.clone(),
        host => host.to_owned(),
    };
    Node { host, port }
}

/// Why a call was not executed, and where it must be sent instead.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirection {
    /// The slot has another owner permanently.
    Moved { slot: usize, to: Node },
    /// The keys are already at the other server, while the slot still moves. This concerns one call only.
    Ask { to: Node },
    /// The slot is moving, and this server does not have all keys of the call.
    Incomplete,
}

impl Redirection {
    /// Parses `MOVED <slot> <host>:<port>`, `ASK <slot> <host>:<port>` or `TRYAGAIN`, an error of the server
    /// `asked`.
    pub(super) fn told_by(failure: &Failure, asked: &Node) -> Option<Redirection> {
        let Failure::NotExecuted(error) = failure else {
            return None;
        };
        let text = error.to_string();
        let mut words = text.split_whitespace();
        if text.starts_with("TRYAGAIN ") {
            return Some(Redirection::Incomplete);
        }
        let (kind, slot, address) = (words.next()?, words.next()?, words.next()?);
        let slot = slot.parse().ok().filter(|slot| *slot < SLOTS)?;
        let (host, port) = address.rsplit_once(':')?;
        let to = host_or_asked(host, port.parse().ok()?, asked);
        match kind {
            "MOVED" => Some(Redirection::Moved { slot, to }),
            "ASK" => Some(Redirection::Ask { to }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::error::ServerError;

    fn at(host: &str, port: u16) -> Node {
        Node {
            host: host.to_owned(),
            port,
        }
    }

    fn told(text: &str) -> Option<Redirection> {
        Redirection::told_by(&Failure::NotExecuted(ServerError::new(text)), &at("asked", 1))
    }

    #[test]
    fn redirections_are_read_with_and_without_a_host() {
        let moved = |to| Some(Redirection::Moved { slot: 3999, to });
        assert_eq!(told("MOVED 3999 127.0.0.1:6381"), moved(at("127.0.0.1", 6381)));
        assert_eq!(told("MOVED 3999 ::1:6381"), moved(at("::1", 6381)));
        assert_eq!(told("MOVED 3999 :6381"), moved(at("asked", 6381)));
        assert_eq!(
            told("ASK 3999 b:6381"),
            Some(Redirection::Ask { to: at("b", 6381) })
        );
        assert_eq!(
            told("TRYAGAIN Multiple keys request during rehashing of slot"),
            Some(Redirection::Incomplete)
        );
        for other in ["MOVED", "MOVED 16384 a:1", "ASK 1 a", "BUSY 1 a:1"] {
            assert_eq!(told(other), None, "{other}");
        }
    }

    #[test]
    fn the_owners_of_slots_are_read_with_their_replicas() {
        let server =
            |host: Wire, port: i64| Wire::Array(vec![host, port.into(), "id".into(), Wire::Array(vec![])]);
        let reply = Wire::Array(vec![Wire::Array(vec![
            0.into(),
            5460.into(),
            server("10.0.0.1".into(), 7000),
            server(Wire::Null, 7001),
        ])]);
        let expected = Range {
            first: 0,
            last: 5460,
            servers: vec![at("10.0.0.1", 7000), at("asked", 7001)],
        };
        assert_eq!(ranges(&reply, &at("asked", 1)), Some(vec![expected]));
        assert_eq!(ranges(&Wire::from("OK"), &at("asked", 1)), None);
    }

    #[test]
    fn host_names_are_read_in_both_protocols() {
        let fields = [
            Wire::Array(vec!["hostname".into(), "one.example".into()]),
            Wire::Map([("hostname", "one.example")].try_into().unwrap()),
        ];
        for named in fields {
            let server = |port: i64, fields: Wire| {
                Wire::Array(vec!["10.0.0.1".into(), port.into(), "id".into(), fields])
            };
            let range = Wire::Array(vec![
                0.into(),
                1.into(),
                server(7000, named),
                server(7001, Wire::Array(vec![])),
                server(7002, Wire::Array(vec!["hostname".into(), "".into()])),
            ]);
            let names = host_names(&Wire::Array(vec![range]), &at("asked", 1));
            assert_eq!(names, [(at("10.0.0.1", 7000), "one.example".to_owned())]);
        }
    }

    #[test]
    fn reply_with_impossible_slots_is_rejected() {
        for (first, last) in [(5460, 0), (0, 16_384), (-1, 0)] {
            let server = Wire::Array(vec!["a".into(), 7000.into()]);
            let reply = Wire::Array(vec![Wire::Array(vec![first.into(), last.into(), server])]);
            assert_eq!(ranges(&reply, &at("asked", 1)), None, "{first} to {last}");
        }
    }
}
