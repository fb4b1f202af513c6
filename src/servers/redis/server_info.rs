//! What a server says of itself in `INFO`, and whether it may get the scripts of a quorum.
//!
//! In a quorum, a server that lost its memory must grant nothing until all holds that it may have forgotten
//! are over. Until then it is *mute*. No client needs to have seen the restart: a server never saves its
//! scripts with its data (<https://redis.io/docs/latest/develop/reference/errors/common/noscript/>), and
//! without scripts it grants nothing. So it is enough that nobody loads them into a server that started less
//! than the longest lease ago. A server that has them was old enough when somebody loaded them.

use std::time::Duration;

use super::options::QuorumServer;
use crate::protocol::interface::Failure;
use crate::types::error::ServerError;

/// Both ends of an uptime are cut to whole seconds, so up to a second of it may not have passed. The other
/// second is a margin.
const UPTIME_ERROR: Duration = Duration::from_secs(2);

/// The versions that `INFO server` of Redis and of Valkey says.
const KNOWN_VERSIONS: [&str; 3] = ["redis_version", "valkey_version", "gcc_version"];

/// The clocks of servers and clients drift by one part of this many.
const DRIFT: u32 = 1_000;

/// Checks whether a server with this `INFO server` may get the scripts of a quorum.
pub(super) fn check_server(info: &str, quorum: QuorumServer) -> Result<(), Failure> {
    check_version(info)?;
    if quorum.durable {
        return Ok(());
    }
    let uptime = number_of(info, "uptime_in_seconds").ok_or_else(|| unsaid("uptime_in_seconds"))?;
    let mute = quorum.longest_lease + quorum.longest_lease / DRIFT + UPTIME_ERROR;
    // In whole seconds, the uptime exceeds the mute time from this one on.
    let enough = mute.as_secs() + 1;
    if uptime >= enough {
        return Ok(());
    }
    Err(Failure::NotExecuted(ServerError::new(format!(
        "this server started recently and may have forgotten holds: it grants nothing for another {} s",
        enough - uptime
    ))))
}

/// Before 7.0, a primary with replicas writes the scripts into its RDB file. Other servers that speak the
/// protocol say a version of Redis too, and may keep scripts with their data, as Kvrocks does. Each of them
/// also says its own version.
fn check_version(info: &str) -> Result<(), Failure> {
    let names = info.lines().filter_map(|line| line.trim().split_once(':'));
    let mut versions = names.filter(|(name, _)| name.ends_with("_version"));
    if let Some((name, version)) = versions.find(|(name, _)| !KNOWN_VERSIONS.contains(name)) {
        return Err(Failure::Refused(ServerError::new(format!(
            "a quorum needs Redis 7.0 or later, or Valkey: this server has the {name} {version}, and its scripts \
             may outlive a restart"
        ))));
    }
    if field(info, "valkey_version").is_some() {
        return Ok(());
    }
    let version = field(info, "redis_version").ok_or_else(|| unsaid("redis_version"))?;
    let major = version.split('.').next().and_then(|major| major.parse().ok());
    match major {
        Some(7_u32..) => Ok(()),
        Some(_) | None => Err(Failure::Refused(ServerError::new(format!(
            "a quorum needs Redis 7.0 or later, or Valkey: this is Redis {version}, whose scripts may outlive a \
             restart"
        )))),
    }
}

fn unsaid(name: &str) -> Failure {
    Failure::Refused(ServerError::new(format!(
        "a quorum needs servers that say their version and uptime, and INFO of this one has no {name}"
    )))
}

pub(super) fn number_of(info: &str, name: &str) -> Option<u64> {
    field(info, name)?.parse().ok()
}

/// What the server does when its memory is full.
pub(super) fn eviction_policy(info: &str) -> Option<&str> {
    field(info, "maxmemory_policy")
}

pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    lines.find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redis(version: &str) -> String {
        format!("# Server\r\nredis_version:{version}\r\nuptime_in_seconds:90\r\nhz:10\r\n")
    }

    fn valkey(version: &str) -> String {
        let words = format!("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:{version}");
        redis("7.2.4").replace("redis_version:7.2.4", &words)
    }

    fn quorum(longest_lease_ms: u64, durable: bool) -> QuorumServer {
        QuorumServer {
            longest_lease: Duration::from_millis(longest_lease_ms),
            durable,
        }
    }

    #[test]
    fn old_versions_and_unknown_servers_are_refused() {
        let without = |info: &str, field: &str| {
            let lines = info.lines().filter(|line| !line.starts_with(field));
            lines.collect::<Vec<_>>().join("\r\n")
        };
        for (info, refused) in [
            (redis("6.2.14"), Some("Redis 6.2.14")),
            (redis("7.0.15"), None),
            (redis("8.2.3"), None),
            (valkey("9.1.2"), None),
            // Whatever version of Redis it claims to be compatible with.
            (valkey("7.2.5").replace("7.2.4", "6.0.0"), None),
            (without(&valkey("8.1.8"), "redis_version"), None),
            (redis("255.255.255"), None),
            (redis("10.0.0"), None),
            (redis("unstable"), Some("Redis unstable")),
            (
                redis("7.0.0\r\nkvrocks_version:2.9.0"),
                Some("kvrocks_version 2.9.0"),
            ),
            (
                redis("7.4.0\r\ndragonfly_version:df-v1.27.1"),
                Some("dragonfly_version df-v1.27.1"),
            ),
            (redis("7.0.15\r\ngcc_version:12.2.0"), None),
            (
                without(&redis("7.0.15"), "redis_version"),
                Some("no redis_version"),
            ),
            (
                without(&valkey("9.1.2"), "uptime_in_seconds"),
                Some("no uptime_in_seconds"),
            ),
            (
                valkey("9.1.2").replace(":90", ":long"),
                Some("no uptime_in_seconds"),
            ),
            (String::new(), Some("no redis_version")),
        ] {
            match (check_server(&info, quorum(60_000, false)), refused) {
                (Ok(()), None) => {}
                (Err(Failure::Refused(error)), Some(words)) => {
                    assert!(error.to_string().contains(words), "{error}");
                }
                (checked, _) => panic!("{checked:?} of {info}"),
            }
        }
        let durable = check_server(&redis("6.2.14"), quorum(60_000, true));
        assert!(matches!(durable, Err(Failure::Refused(_))), "{durable:?}");
    }

    /// Race: A server restarts, and its clients still hold what it has forgotten.
    #[test]
    fn a_server_is_mute_for_the_longest_lease_and_the_errors_of_the_clocks() {
        for (longest_lease_ms, uptime, another) in [
            (60_000, 0, Some(63)),
            (60_000, 31, Some(32)),
            (60_000, 62, Some(1)),
            (60_000, 63, None),
            (100, 2, Some(1)),
            (100, 3, None),
            (1_000, 3, Some(1)),
            (1_000, 4, None),
            // The drift counts.
            (999_000, 1_001, Some(1)),
            (999_000, 1_002, None),
            (1_000_000, 1_003, Some(1)),
            (1_000_000, 1_004, None),
            (86_400_000, 90, Some(86_399)),
            (86_400_000, 86_488, Some(1)),
            (86_400_000, 86_489, None),
        ] {
            for info in [redis("7.0.15"), redis("8.2.3"), valkey("9.1.2")] {
                let info = info.replace(":90", &format!(":{uptime}"));
                match (check_server(&info, quorum(longest_lease_ms, false)), another) {
                    (Ok(()), None) => {}
                    (Err(Failure::NotExecuted(error)), Some(another)) => {
                        assert!(
                            error.to_string().ends_with(&format!(" another {another} s")),
                            "{error}"
                        );
                    }
                    (checked, _) => panic!("{checked:?} at {uptime} s of {longest_lease_ms} ms"),
                }
                check_server(&info, quorum(longest_lease_ms, true)).unwrap();
            }
        }
    }
}
