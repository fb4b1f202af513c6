//! Where the locks are: the servers, and how this process connects to them.

use std::convert::Infallible;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use fairlock::diagnose::{self, Finding};
use fairlock::{LockManager, LockManagerBuilder, MemoryStore, Quorum, RateLimit, Tls};
use tokio::time::{sleep, timeout};

use crate::any_lock::AnyLock;
use crate::args::Connection;
use crate::exit::Failure;
use crate::password::{self, PasswordFile};
use crate::spans::show;

const NO_SERVER: &str = "no server: give one with --url redis://HOST:6379, or set FAIRLOCK_URL \
    (else REDIS_URL or VALKEY_URL is taken); a server for a try is started by `redis-server` or \
    `docker run -p 6379:6379 valkey/valkey`";
const DEFAULT_PREFIX: &str = "fairlock";
const MAX_LABEL: usize = 64;
const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// How long after an answer the next question comes.
const NEXT_QUESTION: Duration = Duration::from_secs(1);

/// The lease of locks that set none. It is that of the library, if the servers may keep a lock for so long.
pub(crate) fn default_lease(longest_lease: Option<Duration>) -> Duration {
    longest_lease.unwrap_or(DEFAULT_LEASE).min(DEFAULT_LEASE)
}

/// The servers and the prefix that a command names. Nothing is connected yet.
#[derive(Clone)]
pub(crate) struct Place {
    urls: Vec<String>,
    password: Option<PasswordFile>,
    prefix: Option<String>,
    label: String,
    tls: Option<Tls>,
    durable: bool,
    longest_lease: Option<Duration>,
}

impl Place {
    pub(crate) fn of(connection: &Connection) -> Result<Place, Failure> {
        let mut urls = urls(&connection.url)?;
        let password = password::complete(&mut urls, connection.password_file.as_deref())?;
        Ok(Place {
            urls,
            password,
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

    /// The servers of a quorum, each by itself. Nothing for any other place.
    pub(crate) fn servers(&self) -> Vec<Place> {
        let urls = self.urls.iter().filter(|_| self.is_quorum());
        let alone = urls.map(|url| Place {
            urls: vec![url.clone()],
            durable: false,
            longest_lease: None,
            ..self.clone()
        });
        alone.collect()
    }

    /// What makes the name of a lock its identity, before that name.
    pub(crate) fn address(&self) -> String {
        let prefix = self.prefix.as_deref().unwrap_or_default();
        format!("{}\n{prefix}\n", self.urls.join(" "))
    }

    /// For people, as in `redis://10.0.0.1:6379, prefix fairlock`.
    pub(crate) fn shown(&self) -> String {
        let prefix = self.prefix.as_deref().unwrap_or(DEFAULT_PREFIX);
        format!("{}, prefix {prefix}", self.urls_shown())
    }

    pub(crate) fn urls_shown(&self) -> String {
        let urls: Vec<String> = self.urls.iter().map(|url| password::shown(url)).collect();
        urls.join(" ")
    }

    pub(crate) async fn connect(&self) -> fairlock::Result<LockManager> {
        match &self.urls[..] {
            [url] => self.builder().connect(url).await,
            _ => {
                self.builder()
                    .connect_quorum(self.quorum(Quorum::of(&self.urls)))
                    .await
            }
        }
    }

    /// Asks a question again and again, by a client of its own, and reports each answer. If an answer takes
    /// longer than `late`, that is reported too, and the answer when it comes.
    pub(crate) async fn ask_on<T, F: Future<Output = fairlock::Result<T>>>(
        self,
        late: Duration,
        question: impl Fn(LockManager) -> F,
        tell: impl Fn(Result<T, String>),
    ) -> Infallible {
        let told = |answer: fairlock::Result<T>| tell(answer.map_err(|error| error.to_string()));
        loop {
            match self.connect().await {
                Ok(locks) => {
                    while !locks.is_closed() {
                        let mut answer = pin!(question(locks.clone()));
                        match timeout(late, &mut answer).await {
                            Ok(answer) => told(answer),
                            Err(_) => {
                                tell(Err(format!("no answer for {}", show(late))));
                                told(answer.await);
                            }
                        }
                        sleep(NEXT_QUESTION).await;
                    }
                }
                Err(error) => told(Err(error)),
            }
            sleep(NEXT_QUESTION).await;
        }
    }

    /// Examines the servers, for programs that wait for so many replicas.
    pub(crate) async fn diagnose(&self, replicas: u32) -> fairlock::Result<Vec<Finding>> {
        let settings = self.builder().replicas(replicas);
        match &self.urls[..] {
            [url] => diagnose::server(settings, url).await,
            urls => diagnose::quorum(settings, self.quorum(Quorum::of(urls))).await,
        }
    }

    /// Refuses a setting, a name or an option that is not allowed, before a server is asked: it is tried on a
    /// lock in memory.
    pub(crate) async fn check(&self, lock: impl FnOnce(&LockManager) -> AnyLock) -> fairlock::Result<()> {
        lock(&self.in_memory().await?).status().await.map(drop)
    }

    /// Refuses rate limits in the same way.
    pub(crate) async fn check_rate_limits(
        &self,
        limits: impl FnOnce(&LockManager) -> Vec<RateLimit>,
    ) -> fairlock::Result<()> {
        for limit in limits(&self.in_memory().await?) {
            limit.status().await?;
        }
        Ok(())
    }

    /// Refuses a pattern in the same way.
    pub(crate) async fn check_pattern(&self, pattern: &str) -> fairlock::Result<()> {
        self.in_memory()
            .await?
            .list(pattern)
            .next()
            .await
            .transpose()
            .map(drop)
    }

    async fn in_memory(&self) -> fairlock::Result<LockManager> {
        let stores = [MemoryStore::new(), MemoryStore::new(), MemoryStore::new()];
        if self.is_quorum() {
            let quorum = self.quorum(Quorum::in_memory(&stores));
            self.builder().connect_quorum(quorum).await
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
        if let Some(password) = &self.password {
            let password = password.clone();
            builder = builder.credentials(move |_| std::future::ready(password.read()));
        }
        builder
    }

    fn quorum(&self, quorum: Quorum) -> Quorum {
        let quorum = if self.durable { quorum.durable() } else { quorum };
        match self.longest_lease {
            Some(longest_lease) => quorum.longest_lease(longest_lease),
            None => quorum,
        }
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
    fn default_label_is_short_and_ends_with_the_process_id() {
        let label = default_label();
        assert!(label.len() <= MAX_LABEL, "{label}");
        assert!(label.ends_with(&format!(":{}", std::process::id())), "{label}");
    }
}
