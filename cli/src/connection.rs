//! Where the locks are: the servers, and how this process connects to them.

use std::path::Path;
use std::time::Duration;

use fairlock::{Finding, Lock, LockManager, LockManagerBuilder, MemoryStore, Tls};
use futures_util::StreamExt;

use crate::args::Connection;
use crate::exit::Failure;

const NO_SERVER: &str = "no server: give one with --url redis://HOST:6379, or set FAIRLOCK_URL \
    (else REDIS_URL or VALKEY_URL is taken); a server for a try is started by `redis-server` or \
    `docker run -p 6379:6379 valkey/valkey`";
const MAX_LABEL: usize = 64;
const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// The lease of locks that set none. It is that of the library, if the servers may keep a lock for so long.
pub(crate) fn default_lease(longest_lease: Option<Duration>) -> Duration {
    longest_lease.unwrap_or(DEFAULT_LEASE).min(DEFAULT_LEASE)
}

/// The servers and the prefix that a command names. Nothing is connected yet.
pub(crate) struct Place {
    urls: Vec<String>,
    prefix: Option<String>,
    label: String,
    tls: Option<Tls>,
    durable: bool,
    longest_lease: Option<Duration>,
}

impl Place {
    pub(crate) fn of(connection: &Connection) -> Result<Place, Failure> {
        let mut urls = urls(&connection.url)?;
        if let Some(password) = password(connection.password_file.as_deref())? {
            for url in &mut urls {
                *url = with_password(url, &password);
            }
        }
        Ok(Place {
            urls,
            prefix: connection.prefix.clone(),
            label: connection.label.clone().unwrap_or_else(default_label),
            tls: tls(connection)?,
            durable: connection.durable,
            longest_lease: connection.longest_lease,
        })
    }

    pub(crate) fn is_quorum(&self) -> bool {
        self.urls.len() > 1
    }

    /// The identity of the lock of this name.
    pub(crate) fn address(&self, name: &str) -> String {
        let prefix = self.prefix.as_deref().unwrap_or_default();
        format!("{}\n{prefix}\n{name}", self.urls.join(" "))
    }

    pub(crate) async fn connect(&self) -> fairlock::Result<LockManager> {
        match &self.urls[..] {
            [url] => self.builder().connect(url).await,
            urls => self.builder().quorum(urls).await,
        }
    }

    /// Examines the servers, for programs that wait for so many replicas, and for disks.
    pub(crate) async fn diagnose(&self, replicas: u32, fsynced: bool) -> fairlock::Result<Vec<Finding>> {
        let builder = self.builder().replicas(replicas).fsynced(fsynced);
        builder.diagnose(&self.urls).await
    }

    /// Refuses a setting, a name or an option that is not allowed, before a server is asked: it is tried on a
    /// lock in memory.
    pub(crate) async fn check(&self, lock: impl FnOnce(&LockManager) -> Lock) -> fairlock::Result<()> {
        lock(&self.in_memory()?).status().await.map(drop)
    }

    /// Refuses a pattern in the same way.
    pub(crate) async fn check_pattern(&self, pattern: &str) -> fairlock::Result<()> {
        self.in_memory()?.list(pattern).next().await.transpose().map(drop)
    }

    fn in_memory(&self) -> fairlock::Result<LockManager> {
        let stores = [MemoryStore::new(), MemoryStore::new(), MemoryStore::new()];
        if self.is_quorum() {
            self.builder().quorum_in_memory(&stores)
        } else {
            self.builder().in_memory(&stores[0])
        }
    }

    fn builder(&self) -> LockManagerBuilder {
        let lease = default_lease(self.longest_lease);
        let mut builder = LockManager::builder().label(&self.label).lease(lease);
        if let Some(prefix) = &self.prefix {
            builder = builder.prefix(prefix);
        }
        if let Some(tls) = &self.tls {
            builder = builder.tls(tls.clone());
        }
        if self.durable {
            builder = builder.durable(true);
        }
        if let Some(longest_lease) = self.longest_lease {
            builder = builder.longest_lease(longest_lease);
        }
        builder
    }
}

fn urls(given: &[String]) -> Result<Vec<String>, Failure> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    if let Some(list) = variable("FAIRLOCK_URL") {
        return Ok(list.split(',').map(|url| url.trim().to_owned()).collect());
    }
    let url = variable("REDIS_URL").or_else(|| variable("VALKEY_URL"));
    url.map(|url| vec![url]).ok_or_else(|| Failure::usage(NO_SERVER))
}

/// The value of an environment variable. An empty one counts as none.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn password(file: Option<&Path>) -> Result<Option<String>, Failure> {
    let Some(file) = file else {
        return Ok(variable("FAIRLOCK_PASSWORD"));
    };
    let content = String::from_utf8(read(file)?);
    let content = content.map_err(|_| Failure::usage(format!("{}: must be UTF-8", file.display())))?;
    // Editors end the last line.
    Ok(Some(content.trim_end_matches(['\r', '\n']).to_owned()))
}

fn tls(connection: &Connection) -> Result<Option<Tls>, Failure> {
    let mut tls = None;
    if let Some(ca) = &connection.ca {
        tls = Some(Tls::new().ca_certificates(read(ca)?));
    }
    if let (Some(cert), Some(key)) = (&connection.cert, &connection.key) {
        tls = Some(
            tls.unwrap_or_default()
                .client_certificate(read(cert)?, read(key)?),
        );
    }
    Ok(tls)
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

/// Puts the password into a URL that has none.
fn with_password(url: &str, password: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let authority_ends = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(authority_ends);
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if user.contains(':') {
        return url.to_owned();
    }
    // A Unix socket has no host, and a URL with a user needs one.
    let host = if host.is_empty() { "localhost" } else { host };
    format!("{scheme}://{user}:{}@{host}{path}", escaped(password))
}

fn escaped(text: &str) -> String {
    let escaped = text.bytes().map(|byte| {
        if byte.is_ascii_alphanumeric() {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    escaped.collect()
}

/// As in `deploy@web-7:4711`. What a label must not contain is left out.
fn default_label() -> String {
    let user = variable("USER").or_else(|| variable("LOGNAME"));
    let user = user.map(|user| format!("{user}@")).unwrap_or_default();
    let host = nix::sys::utsname::uname().map(|name| name.nodename().to_string_lossy().into_owned());
    let pid = format!(":{}", std::process::id());
    let who = user + &host.unwrap_or_default();
    let printable = who.chars().filter(char::is_ascii_graphic);
    printable.take(MAX_LABEL - pid.len()).collect::<String>() + &pid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_goes_into_a_url_that_has_none() {
        for (url, expected) in [
            ("redis://h", "redis://:p%40%2F@h"),
            ("redis://u@h:1/2", "redis://u:p%40%2F@h:1/2"),
            ("redis://u:own@h", "redis://u:own@h"),
            ("redis-sentinel://h?node=i", "redis-sentinel://:p%40%2F@h?node=i"),
            (
                "unix:///run/r.sock?db=1",
                "unix://:p%40%2F@localhost/run/r.sock?db=1",
            ),
            ("no url", "no url"),
        ] {
            assert_eq!(with_password(url, "p@/"), expected);
        }
    }

    #[test]
    fn default_label_is_short_and_ends_with_the_process_id() {
        let label = default_label();
        assert!(label.len() <= MAX_LABEL, "{label}");
        assert!(label.ends_with(&format!(":{}", std::process::id())), "{label}");
    }
}
