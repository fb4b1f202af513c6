//! Examines a server: what a client that connects to it is refused, or warned of. Nothing is left on the
//! server, apart from the entries in its `ACL LOG` for rights that are missing.

mod rights;
mod state;

use std::sync::Arc;
use std::time::Instant;

use fred::error::{Error, ErrorKind};
use fred::types::Value;
use futures_util::future::join_all;
use tokio::sync::mpsc;

use self::rights::{Heard, RightsReport};
use super::cluster::owners_by;
use super::connection::{Connection, Messages, Unanswered};
use super::connector::Connector;
use super::failure;
use super::options::Options;
use super::role::DistinctServers;
use super::slot::SLOTS;
use super::{Trust, connector};
use crate::protocol::interface::Failure;
use crate::protocol::label::Label;
use crate::types::diagnosis::{Finding, Subject, Verdict};
use crate::types::error::Invalid;

/// What is examined, and for which use.
pub(crate) struct Examination<'a> {
    pub(crate) trust: Trust<'a>,
    pub(crate) prefix: &'a str,
    pub(crate) label: &'a Label,
    pub(crate) options: Options,
    /// The servers of the quorum that is examined.
    pub(crate) quorum: Option<Arc<DistinctServers>>,
}

/// Where a server stands, which decides what else is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    Alone,
    BehindSentinels,
    /// As a master, which has the slots from the first to the second one.
    InCluster(usize, usize),
}

impl Examination<'_> {
    /// Examines the server or servers of the URL. Only a URL that cannot be read is an error.
    pub(crate) async fn of(&self, url: &str) -> Result<Vec<Finding>, Invalid> {
        let connector =
            connector(url, self.trust, self.label.clone(), self.options)?.among(self.quorum.clone());
        let mut findings = Vec::new();
        if !connector.seeds().is_empty() {
            self.examine_cluster(&connector, &mut findings).await;
        } else if connector.sentinels().is_some() {
            self.examine_sentinels(&connector, &mut findings).await;
        } else {
            self.examine(&connector, Setting::Alone, &mut findings).await;
        }
        Ok(findings)
    }

    async fn examine_sentinels(&self, connector: &Connector, findings: &mut Vec<Finding>) {
        let Some(sentinels) = connector.sentinels() else {
            return;
        };
        let answers = sentinels.ask_each().await;
        let newest = answers
            .iter()
            .filter_map(|(_, answer)| answer.as_ref().ok())
            .max_by_key(|primary| primary.epoch)
            .map(|primary| primary.server.clone());
        for (sentinel, answer) in answers {
            let mut found = Findings::at(&sentinel, findings);
            match answer {
                Ok(primary) if Some(&primary.server) == newest.as_ref() => {
                    found.fine(
                        Subject::Sentinel,
                        format!("names {} as the primary", primary.server),
                    );
                }
                Ok(primary) => found.add(
                    Subject::Sentinel,
                    Verdict::Warning,
                    format!("names {}, which is not the latest primary", primary.server),
                ),
                // The others are enough, if there are any.
                Err(failure) if newest.is_some() => {
                    found.add(Subject::Sentinel, Verdict::Warning, words(failure).1);
                }
                Err(failure) => found.failed(Subject::Sentinel, failure),
            }
        }
        if newest.is_some() {
            self.examine(connector, Setting::BehindSentinels, findings).await;
        }
    }

    async fn examine_cluster(&self, connector: &Connector, findings: &mut Vec<Finding>) {
        let asked = connector.seeds().iter().map(async |seed| {
            let connection = connector.at(seed).open_for_calls().await?;
            owners_by(connector, &connection, seed).await
        });
        let answers = join_all(asked).await;
        let is_known = answers.iter().any(Result::is_ok);
        let mut known = None;
        for (seed, answer) in connector.seeds().iter().zip(answers) {
            let mut found = Findings::at(seed, findings);
            match answer {
                Ok(owners) => known = known.or(Some((seed, owners))),
                // The others are enough, if there are any.
                Err(failure) if is_known => found.add(Subject::Cluster, Verdict::Warning, words(failure).1),
                Err(failure) => found.failed(Subject::Cluster, failure),
            }
        }
        let Some((seed, owners)) = known else { return };
        let mut found = Findings::at(seed, findings);
        let assigned: usize = owners.iter().map(|owner| owner.slots).sum();
        if assigned == SLOTS {
            let text = format!("all slots have an owner, among {} masters", owners.len());
            found.fine(Subject::Cluster, text);
        } else {
            let text = format!(
                "{} of {SLOTS} slots have no owner: locks there cannot be taken",
                SLOTS - assigned
            );
            found.add(Subject::Cluster, Verdict::Unavailable, text);
        }
        for owner in owners {
            let (first, last) = owner.range;
            let setting = Setting::InCluster(first, last);
            self.examine(&connector.at(&owner.master), setting, findings)
                .await;
        }
    }

    async fn examine(&self, connector: &Connector, setting: Setting, findings: &mut Vec<Finding>) {
        let mut found = Findings::at(connector.server(), findings);
        let began = Instant::now();
        let opened = connector.open_for_calls().await;
        let connection = match opened {
            Ok(connection) => connection,
            Err(failure) => return found.failed(Subject::Connection, failure),
        };
        if let Err(error) = ask(&connection, &["PING".to_owned()]).await {
            // Without the right to PING, the user is known at least.
            if failure::code(&error) != Some("NOPERM") {
                return found.failed(Subject::Connection, failure::classify(&error));
            }
        }
        found.fine(
            Subject::Connection,
            format!(
                "answers, {} ms after the first packet",
                began.elapsed().as_millis()
            ),
        );
        let info = state::info(&connection).await;
        let mut tried = RightsReport::default();
        self.state(&connection, setting, info.as_deref(), &mut found)
            .await;
        self.try_commands(&connection, connector, setting, info.as_deref(), &mut tried)
            .await;
        drop(connection);
        let (heard, answers) = mpsc::unbounded_channel();
        let heard: Arc<dyn Messages> = Arc::new(Heard(heard));
        match connector.open(&heard).await {
            Ok(connection) => {
                self.try_channels(&connection, answers, setting, info.as_deref(), &mut tried)
                    .await
            }
            Err(failure) => found.failed(Subject::Connection, failure),
        }
        tried.report(self, &mut found);
    }
}

/// The findings at one server.
struct Findings<'a> {
    server: String,
    list: &'a mut Vec<Finding>,
}

impl<'a> Findings<'a> {
    fn at(server: &(impl ToString + ?Sized), list: &'a mut Vec<Finding>) -> Findings<'a> {
        Findings {
            server: server.to_string(),
            list,
        }
    }

    fn add(&mut self, subject: Subject, verdict: Verdict, text: impl Into<String>) {
        self.list.push(Finding {
            server: self.server.clone(),
            subject,
            verdict,
            text: text.into(),
        });
    }

    fn fine(&mut self, subject: Subject, text: impl Into<String>) {
        self.add(subject, Verdict::Fine, text);
    }

    fn failed(&mut self, subject: Subject, failure: Failure) {
        let (verdict, text) = words(failure);
        // Some failures name their server.
        let own = format!("{}: ", self.server);
        self.add(subject, verdict, text.strip_prefix(&own).unwrap_or(&text));
    }
}

/// What a call with this failure ends with.
fn words(failure: Failure) -> (Verdict, String) {
    match failure {
        Failure::Refused(error) => (Verdict::Refused, error.to_string()),
        Failure::Unknown(error) | Failure::NotExecuted(error) => (Verdict::Unavailable, error.to_string()),
        Failure::GivenUp | Failure::Closed => (Verdict::Unavailable, "the connection was closed".to_owned()),
    }
}

/// Whether the server is at least of this version of Redis, as far as it says. Valkey began as 7.2.
fn is_from(info: Option<&str>, major: u32, minor: u32) -> bool {
    let version = info.and_then(|info| super::server_info::field(info, "redis_version"));
    let mut parts = version.unwrap_or_default().split('.').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(m)), Some(Ok(n))) => (m, n) >= (major, minor),
        _ => false,
    }
}

/// Asks by one command, and takes any reply.
async fn ask(connection: &Connection, line: &[String]) -> Result<Value, Error> {
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    connection.line().ask(&words).await.map_err(|why| match why {
        Unanswered::Error(said) => Error::new(ErrorKind::Unknown, said),
        Unanswered::Late => Error::new(ErrorKind::Timeout, ""),
        Unanswered::Lost(_) => Error::new(ErrorKind::Canceled, ""),
    })
}
