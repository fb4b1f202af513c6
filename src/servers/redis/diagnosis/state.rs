//! What a server says of itself: its version, memory, disk, clock and replicas.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::super::connection::Connection;
use super::super::server_info::{check_server, eviction_policy, field, number_of};
use super::{Examination, Findings, Setting, ask, words};
use crate::protocol::interface::Failure;
use crate::servers::redis::options::QuorumServer;
use crate::time::server_time::CLOCKS_APART;
use crate::types::diagnosis::{Subject, Verdict};

/// The first release of Redis whose scripts can do what locks need.
const OLDEST: (u64, u64) = (6, 2);
/// Servers of other makers that call themselves Redis.
const RELATIVES: &[(&str, &str)] = &[
    ("dragonfly_version", "Dragonfly"),
    ("garnet_version", "Garnet"),
    ("kvrocks_version", "Kvrocks"),
];
/// September 2001, as in `lua/lib/clock.lua`.
const UNSET: Duration = Duration::from_secs(1_000_000_000);
/// A replica that has said nothing for longer is behind, or gone. It speaks once a second.
const LAGS: u64 = 10;

/// What the server says of itself, if the user may ask.
pub(super) async fn info(connection: &Connection) -> Option<String> {
    let info = ask(connection, &["INFO".to_owned()]).await.ok()?;
    info.as_string()
}

impl Examination<'_> {
    pub(super) async fn state(
        &self,
        connection: &Connection,
        setting: Setting,
        info: Option<&str>,
        found: &mut Findings<'_>,
    ) {
        version(info, self.options.quorum, found);
        eviction(info, found);
        evicted_clients(info, found);
        let appends = info.and_then(|info| number_of(info, "aof_enabled")) == Some(1);
        // A user who may not read it leaves a mark in the server's log, so it is asked only where it counts.
        let appendfsync = if appends {
            appendfsync(connection).await
        } else {
            None
        };
        self.persistence(info, appendfsync.as_deref(), found);
        clock(connection, found).await;
        self.replicas(info, setting, found);
    }

    fn persistence(&self, info: Option<&str>, appendfsync: Option<&str>, found: &mut Findings<'_>) {
        let enabled = info.and_then(|info| number_of(info, "aof_enabled"));
        let durable = self.options.quorum.is_some_and(|quorum| quorum.durable);
        let (keeps_all, text) = match (enabled, appendfsync) {
            (Some(0), _) => (false, "no append-only file: a restart forgets locks"),
            (Some(_), Some("always")) => (true, "appendfsync always: a restart forgets no lock"),
            (Some(_), Some("everysec")) => (
                false,
                "appendfsync everysec: a restart may forget the last seconds",
            ),
            (Some(_), Some(_)) => (
                false,
                "appendfsync no: a restart of its machine forgets what was not flushed",
            ),
            (Some(_), None) => (
                false,
                "an append-only file; how it is flushed (appendfsync) cannot be read without +config|get",
            ),
            (None, _) => (false, "cannot be read without +info"),
        };
        let overlap = "two holders may overlap for one lease then; docs/guarantees.md has more";
        if durable && !keeps_all {
            found.add(
                Subject::Persistence,
                Verdict::Warning,
                format!("{text}. Clients that say `durable` rely on appendonly yes and appendfsync always"),
            );
        } else if keeps_all || durable || self.options.quorum.is_some() {
            found.fine(Subject::Persistence, text);
        } else if enabled.is_none() {
            found.add(Subject::Persistence, Verdict::Warning, text);
        } else {
            let verdict = match enabled {
                Some(0) => Verdict::Warning,
                _ => Verdict::Fine,
            };
            found.add(Subject::Persistence, verdict, format!("{text}; {overlap}"));
        }
    }

    fn replicas(&self, info: Option<&str>, setting: Setting, found: &mut Findings<'_>) {
        let Some(info) = info else {
            return found.add(
                Subject::Replicas,
                Verdict::Warning,
                "cannot be read without +info",
            );
        };
        if field(info, "role") == Some("slave") {
            let primary = field(info, "master_host").unwrap_or("another server");
            return found.add(
                Subject::Replicas,
                Verdict::Unavailable,
                format!("this is a replica of {primary}, and takes no writes: name the primary"),
            );
        }
        let connected = number_of(info, "connected_slaves").unwrap_or(0);
        let mut lagging = Vec::new();
        for number in 0..connected {
            let Some(replica) = field(info, &format!("slave{number}")) else {
                continue;
            };
            let of = |name: &str| {
                let mut fields = replica.split(',');
                fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
            };
            let lag = of("lag").and_then(|lag| lag.parse().ok()).unwrap_or(0);
            if of("state") != Some("online") || lag > LAGS {
                lagging.push(format!(
                    "{} ({}, {lag} s behind)",
                    of("ip").unwrap_or("?"),
                    of("state").unwrap_or("?")
                ));
            }
        }
        let wanted = u64::from(self.options.replicas);
        let (verdict, text) = if connected < wanted {
            let text = format!("{connected} connected: {wanted} must confirm each grant, so none can be had");
            (Verdict::Unavailable, text)
        } else if !lagging.is_empty() {
            (
                Verdict::Warning,
                format!("{connected} connected, not all in step: {}", lagging.join(", ")),
            )
        } else if connected == 0 && setting != Setting::Alone {
            (
                Verdict::Warning,
                "none connected: nobody can take over from this server".to_owned(),
            )
        } else {
            (Verdict::Fine, format!("{connected} connected"))
        };
        found.add(Subject::Replicas, verdict, text);
    }
}

fn version(info: Option<&str>, quorum: Option<QuorumServer>, found: &mut Findings<'_>) {
    if let Some(quorum) = quorum {
        if let Err(failure) = check_server(info.unwrap_or_default(), quorum) {
            // What a server says when it may not be asked is not that it says nothing.
            return match (info, failure) {
                (None, Failure::Refused(_)) => found.add(
                    Subject::Version,
                    Verdict::Refused,
                    "cannot be read without +info, which a quorum needs",
                ),
                (_, failure) => found.failed(Subject::Version, failure),
            };
        }
    }
    let Some(info) = info else {
        return found.add(Subject::Version, Verdict::Warning, "cannot be read without +info");
    };
    if let Some((maker, version)) = RELATIVES
        .iter()
        .find_map(|(name, maker)| Some((maker, field(info, name)?)))
    {
        let text =
            format!("{maker} {version}: nobody has tried it; docs/servers.md says what may be missing");
        return found.add(Subject::Version, Verdict::Warning, text);
    }
    if let Some(version) = field(info, "valkey_version") {
        return found.fine(Subject::Version, format!("Valkey {version}"));
    }
    let version = field(info, "redis_version").unwrap_or("of no known version");
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    let known = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if known < OLDEST {
        let text = format!("Redis {version}: must be 6.2 or later, or Valkey");
        return found.add(Subject::Version, Verdict::Refused, text);
    }
    found.fine(Subject::Version, format!("Redis {version}"));
}

fn eviction(info: Option<&str>, found: &mut Findings<'_>) {
    match info.and_then(eviction_policy) {
        None => found.add(
            Subject::Eviction,
            Verdict::Warning,
            "maxmemory-policy cannot be read without +info: it should be noeviction",
        ),
        Some("noeviction") => found.fine(Subject::Eviction, "maxmemory-policy noeviction"),
        Some(policy) => found.add(
            Subject::Eviction,
            Verdict::Warning,
            format!("maxmemory-policy {policy}: locks may be evicted. Set it to noeviction"),
        ),
    }
}

/// Most users of locks may not read the setting itself. What it did is known from Redis 7.0 on.
fn evicted_clients(info: Option<&str>, found: &mut Findings<'_>) {
    let closed = info.and_then(|info| number_of(info, "evicted_clients"));
    if let Some(closed) = closed.filter(|closed| *closed > 0) {
        let text = format!(
            "maxmemory-clients has closed {closed} connections: a waiter whose connection is closed misses its \
             turn, and may get the lock late"
        );
        found.add(Subject::Connection, Verdict::Warning, text);
    }
}

/// How the append-only file is flushed. Most users of locks may not read that.
async fn appendfsync(connection: &Connection) -> Option<String> {
    let line = ["CONFIG", "GET", "appendfsync"].map(str::to_owned);
    let reply = ask(connection, &line).await.ok()?;
    let settings: HashMap<String, String> = reply.convert().ok()?;
    settings.get("appendfsync").cloned()
}

async fn clock(connection: &Connection, found: &mut Findings<'_>) {
    let before = since_1970();
    let time = ask(connection, &["TIME".to_owned()]).await;
    let ours = (before + since_1970()) / 2;
    let time = match time {
        Ok(time) => time,
        Err(error) => {
            let text = words(super::failure::classify(&error)).1;
            return found.add(
                Subject::Clock,
                Verdict::Warning,
                format!("cannot be read: {text}"),
            );
        }
    };
    let Ok((seconds, micros)) = time.convert::<(i64, u64)>() else {
        return found.add(
            Subject::Clock,
            Verdict::Warning,
            "TIME has no answer of two numbers",
        );
    };
    // A clock may even show a time before 1970.
    let theirs = Duration::from_secs(u64::try_from(seconds).unwrap_or(0)) + Duration::from_micros(micros);
    if theirs < UNSET {
        let text = "the server's clock shows a time before September 2001: set it";
        return found.add(Subject::Clock, Verdict::Refused, text);
    }
    let (apart, ahead) = if theirs >= ours {
        (theirs - ours, "ahead of")
    } else {
        (ours - theirs, "behind")
    };
    let text = format!(
        "{}.{:03} s {ahead} this machine's; locks go by the server's alone",
        apart.as_secs(),
        apart.subsec_millis()
    );
    if apart > CLOCKS_APART {
        found.add(
            Subject::Clock,
            Verdict::Warning,
            format!("{text}. One of the two is wrong"),
        );
    } else {
        found.fine(Subject::Clock, text);
    }
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::diagnosis::Finding;

    #[test]
    fn versions_that_cannot_work_are_refused_and_unknown_servers_warned_of() {
        for (info, verdict, words) in [
            (
                "redis_version:6.0.16",
                Verdict::Refused,
                "Redis 6.0.16: must be 6.2",
            ),
            ("redis_version:6.2.0", Verdict::Fine, "Redis 6.2.0"),
            ("redis_version:10.0.1", Verdict::Fine, "Redis 10.0.1"),
            ("redis_version:unstable", Verdict::Refused, "Redis unstable"),
            ("other:1", Verdict::Refused, "of no known version"),
            (
                "redis_version:7.2.4\r\nvalkey_version:8.1.0",
                Verdict::Fine,
                "Valkey 8.1.0",
            ),
            (
                "redis_version:7.4.0\r\ndragonfly_version:df-v1.30",
                Verdict::Warning,
                "Dragonfly df-v1.30",
            ),
        ] {
            let mut list = Vec::new();
            version(Some(info), None, &mut Findings::at("a", &mut list));
            assert_eq!((list.len(), list[0].verdict), (1, verdict), "{info}");
            assert!(list[0].text.contains(words), "{list:?}");
        }
    }

    #[test]
    fn connections_that_the_server_closed_for_their_memory_are_warned_of() {
        for (info, count) in [
            (None, 0),
            (Some("redis_version:6.2.0"), 0),
            (Some("evicted_clients:0"), 0),
            (Some("evicted_keys:9\r\nevicted_clients:3"), 1),
        ] {
            let mut list = Vec::new();
            evicted_clients(info, &mut Findings::at("a", &mut list));
            assert_eq!(list.len(), count, "{info:?}");
            let is_told = |finding: &Finding| {
                finding.verdict == Verdict::Warning
                    && finding.text.contains("maxmemory-clients has closed 3 ")
            };
            assert!(list.iter().all(is_told), "{list:?}");
        }
    }
}
