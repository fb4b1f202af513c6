//! Tries each right that a user of locks needs.
//!
//! A server checks the rights of a command before anything else but the number of its words. So each command
//! here does nothing: its keys do not exist, or its words are refused once the user's rights are granted.

use std::collections::BTreeMap;
use std::sync::Arc;

use fred::error::{Error, ErrorKind};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::connection::{Connection, Messages};
use super::super::connector::Connector;
use super::super::failure;
use super::super::slot::slot_of;
use super::{Examination, Findings, Setting, ask, is_from};
use crate::protocol::ids::ClientId;
use crate::protocol::interface::Failure;
use crate::protocol::keys::{Keys, label_key};
use crate::types::diagnosis::{Subject, Verdict};

/// Words with a `$` stand for the keys and the channel of a lock that nobody has ever named.
const FOR_ALL: &[&str] = &[
    "EVALSHA 0000000000000000000000000000000000000000 0",
    "SCRIPT LOAD )",
    "TIME",
    "HGET $lock hold",
    "HGET $spin request",
    "HGET $label label",
    "HGETALL $lock",
    "HSET $lock without a value",
    "HDEL $lock hold",
    "HLEN $lock",
    "HSCAN $lock 0 COUNT 1",
    "DEL $lock $queue $spin",
    "DEL $label",
    "PEXPIRE $lock 1",
    "PTTL $lock",
    "ZADD $queue no-number request",
    "ZCARD $queue",
    "ZSCORE $queue request",
    "ZPOPMIN $queue",
    "ZRANGE $queue 0 0",
    "ZREM $queue request",
    "PUBLISH $channel -",
    "PUBSUB NUMSUB",
    "PING",
    "INFO server",
    "SCAN 0 COUNT 1",
];
const FROM_7_2: &[&str] = &["CLIENT SETINFO LIB-NAME fairlock"];
const FOR_REPLICAS: &[&str] = &["WAIT 0 1"];
const IN_A_CLUSTER: &[&str] = &["CLUSTER SLOTS", "ASKING"];
const IN_A_CLUSTER_FROM_7_0: &[&str] = &["PUBSUB SHARDNUMSUB", "SPUBLISH $channel -"];

/// Commands whose subcommands are rights of their own.
const CONTAINERS: &[&str] = &["CLIENT", "CLUSTER", "PUBSUB", "SCRIPT"];

/// What a user misses without a right that can be spared.
const SPARED: &[(&str, &str)] = &[
    (
        "+ping",
        "the server notes each test of a connection in its ACL LOG",
    ),
    ("+scan", "locks cannot be listed"),
    ("+info", "nobody is warned that the server may evict locks"),
    ("+client|setinfo", "CLIENT LIST does not show the library"),
];

#[derive(Clone, Debug, PartialEq, Eq)]
enum Right {
    Granted,
    Denied(String),
    /// The server does not know the command.
    Unknown(String),
    /// The connection ended before the answer.
    NotTried(String),
}

/// What was tried at one server. What is denied once is denied.
#[derive(Default)]
pub(super) struct RightsReport {
    commands: BTreeMap<String, Right>,
    keys: Option<Right>,
    channels: Option<Right>,
    /// Why the server executes nothing now.
    unwilling: Option<String>,
}

impl RightsReport {
    /// Takes the answer to a command.
    fn heard(&mut self, line: &[String], error: Option<&Error>) {
        let uses = |what: &str| line.iter().any(|word| word.contains(what));
        let (key, channel) = (uses(":{") && !uses(":unlock:"), uses(":unlock:"));
        let (mut of_command, mut of_key, mut of_channel) = (
            Right::Granted,
            key.then_some(Right::Granted),
            channel.then_some(Right::Granted),
        );
        if let Some(error) = error {
            let text = failure::message(error).to_string();
            match failure::code(error) {
                Some("NOPERM") if text.contains("permissions to access") => {
                    let denied = Right::Denied(text.clone());
                    if text.contains("channel") {
                        of_channel = Some(denied);
                    } else {
                        of_key = Some(Right::Denied(format!("{}: {text}", line[1])));
                    }
                }
                Some("NOPERM") => (of_command, of_key, of_channel) = (Right::Denied(text), None, None),
                Some("ERR") if text.to_lowercase().contains("unknown") => {
                    (of_command, of_key, of_channel) = (Right::Unknown(text), None, None);
                }
                // No reply of the server.
                None => (of_command, of_key, of_channel) = (Right::NotTried(text), None, None),
                Some("MOVED" | "ASK" | "NOSCRIPT") => {}
                Some(_) => {
                    if let Failure::NotExecuted(error) | Failure::Unknown(error) = failure::classify(error) {
                        self.unwilling.get_or_insert(error.to_string());
                    }
                }
            }
        }
        let command = self.commands.entry(right_of(line)).or_insert(Right::Granted);
        worse(command, of_command);
        for (known, outcome) in [(&mut self.keys, of_key), (&mut self.channels, of_channel)] {
            if let Some(outcome) = outcome {
                worse(known.get_or_insert(Right::Granted), outcome);
            }
        }
    }

    pub(super) fn report(self, examination: &Examination<'_>, found: &mut Findings<'_>) {
        if let Some(why) = self.unwilling {
            found.add(Subject::Writes, Verdict::Unavailable, why);
        } else {
            found.fine(Subject::Writes, "the server takes writes");
        }
        let prefix = examination.prefix;
        let patterns = [
            (format!("~{prefix}:*"), self.keys),
            (format!("&{prefix}:*"), self.channels),
        ];
        let patterns = patterns.map(|(right, outcome)| {
            let unheard = || Right::NotTried("the commands that use it are denied".to_owned());
            (right, outcome.unwrap_or_else(unheard))
        });
        for (right, outcome) in patterns.into_iter().chain(self.commands) {
            let spared = SPARED.iter().find(|(spared, _)| *spared == right);
            let (verdict, text) = match (outcome, spared) {
                (Right::Granted, _) => (Verdict::Fine, "granted".to_owned()),
                (Right::Denied(why), Some((_, missed))) => {
                    (Verdict::Warning, format!("missing, so {missed}: {why}"))
                }
                (Right::Denied(why), None) => (
                    Verdict::Refused,
                    format!("missing: grant it by ACL SETUSER ({why})"),
                ),
                (Right::Unknown(why), Some((_, missed))) => (
                    Verdict::Warning,
                    format!("the server does not know it, so {missed}: {why}"),
                ),
                (Right::Unknown(why), None) => {
                    (Verdict::Refused, format!("the server does not know it: {why}"))
                }
                (Right::NotTried(why), _) => (Verdict::Warning, format!("not tried: {why}")),
            };
            found.add(Subject::Right(right), verdict, text);
        }
    }
}

/// Keeps the first thing that is wrong.
fn worse(known: &mut Right, outcome: Right) {
    if *known == Right::Granted {
        *known = outcome;
    }
}

/// The right to a command, as `ACL SETUSER` takes it.
fn right_of(line: &[String]) -> String {
    let words = if CONTAINERS.contains(&line[0].as_str()) {
        &line[..2]
    } else {
        &line[..1]
    };
    format!("+{}", words.join("|").to_lowercase())
}

/// The names that the commands are tried with.
struct Names {
    keys: Keys,
    label: String,
    channel: String,
}

impl Names {
    /// In a cluster, the keys are in a slot of the master that is examined. Another master would answer that
    /// it does not have them, before it looks at anything else.
    fn new(prefix: &str, setting: Setting) -> Names {
        let (client, keys) = loop {
            let client = ClientId::random();
            let keys = Keys::new(prefix, client.as_str());
            let keys = keys.unwrap_or_else(|_| unreachable!("a client's id can be the name of a lock"));
            match setting {
                Setting::InCluster(first, last) if !(first..=last).contains(&slot_of(&keys.lock)) => {}
                _ => break (client, keys),
            }
        };
        Names {
            label: label_key(prefix, &client),
            channel: keys.channel_of(&client).to_string(),
            keys,
        }
    }

    fn fill(&self, words: &str) -> Vec<String> {
        let fill = |word| match word {
            "$lock" => &self.keys.lock,
            "$queue" => &self.keys.queue,
            "$spin" => &self.keys.spin,
            "$label" => &self.label,
            "$channel" => &self.channel,
            word => word,
        };
        words.split(' ').map(fill).map(str::to_owned).collect()
    }
}

impl Examination<'_> {
    pub(super) async fn try_commands(
        &self,
        connection: &Connection,
        connector: &Connector,
        setting: Setting,
        info: Option<&str>,
        tried: &mut RightsReport,
    ) {
        let in_cluster = matches!(setting, Setting::InCluster(..));
        let groups = [
            (FOR_ALL, true),
            (FROM_7_2, is_from(info, 7, 2)),
            (FOR_REPLICAS, self.options.replicas > 0),
            (IN_A_CLUSTER, in_cluster),
            (IN_A_CLUSTER_FROM_7_0, in_cluster && is_from(info, 7, 0)),
        ];
        let names = Names::new(self.prefix, setting);
        let needed = groups.iter().filter(|(_, needed)| *needed);
        let mut lines: Vec<_> = needed
            .flat_map(|(group, _)| *group)
            .map(|words| names.fill(words))
            .collect();
        if let Some(database) = connector.database() {
            lines.push(vec!["SELECT".to_owned(), database.to_string()]);
        }
        // Calls on a connection that is over would be answered by their time-outs, one after the other.
        let mut over = None;
        for line in lines {
            if over.is_some() {
                tried.heard(&line, over.as_ref());
                continue;
            }
            let error = ask(connection, &line).await.err();
            tried.heard(&line, error.as_ref());
            if let Some(Failure::Unknown(why)) = error.as_ref().map(failure::classify) {
                tried.unwilling.get_or_insert(why.to_string());
                over = Some(Error::new(ErrorKind::Canceled, ""));
            }
        }
    }

    /// Begins and ends a subscription, on this connection.
    pub(super) async fn try_channels(
        &self,
        connection: &Connection,
        mut heard: mpsc::UnboundedReceiver<Option<String>>,
        setting: Setting,
        info: Option<&str>,
        tried: &mut RightsReport,
    ) {
        let channel: Arc<str> = Names::new(self.prefix, setting).channel.into();
        let sharded = matches!(setting, Setting::InCluster(..)) && is_from(info, 7, 0);
        let sharded = sharded.then_some(("SSUBSCRIBE", "SUNSUBSCRIBE"));
        for (begin, end) in sharded.into_iter().chain([("SUBSCRIBE", "UNSUBSCRIBE")]) {
            let line = connection.line();
            for (command, send) in [(begin, true), (end, false)] {
                if send {
                    line.subscribe(command, &channel, 1);
                } else {
                    line.unsubscribe(command, &channel);
                }
                let answer = timeout(self.options.attempt_timeout, heard.recv()).await;
                let error = match answer {
                    Ok(Some(answer)) => answer.map(|said| Error::new(ErrorKind::Unknown, said)),
                    Ok(None) | Err(_) => Some(Error::new(ErrorKind::Timeout, "")),
                };
                tried.heard(&[command.to_owned(), channel.to_string()], error.as_ref());
            }
        }
    }
}

/// Tells what each subscription and its end were answered with: nothing, or an error.
pub(super) struct Heard(pub(super) mpsc::UnboundedSender<Option<String>>);

impl Heard {
    fn tell(&self, error: Option<&str>) {
        // The receiver may have lost patience.
        let _ = self.0.send(error.map(str::to_owned));
    }
}

impl Messages for Heard {
    fn message(&self, _: &str, _: &str) {}

    fn subscribed(&self, _: &str, _: u64) {
        self.tell(None);
    }

    fn not_subscribed(&self, _: &Arc<str>, _: u64, said: &str) {
        self.tell(Some(said));
    }

    fn unsubscribed(&self, _: &str) {
        self.tell(None);
    }

    fn not_unsubscribed(&self, said: &str) {
        self.tell(Some(said));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    /// The words of Redis 6.2, of 7.0 and later, and of Valkey.
    #[test]
    fn denied_right_is_read_from_the_words_of_each_server() {
        let line = line_of("HGET fairlock:{a} hold");
        for (text, command, key) in [
            (
                "NOPERM this user has no permissions to run the 'hget' command or its subcommand",
                false,
                None,
            ),
            (
                "NOPERM this user has no permissions to run the 'hget' command",
                false,
                None,
            ),
            (
                "NOPERM User access has no permissions to run the 'hget' command",
                false,
                None,
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                true,
                Some(false),
            ),
            ("NOPERM No permissions to access a key", true, Some(false)),
            ("MOVED 3999 127.0.0.1:6381", true, Some(true)),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                true,
                Some(true),
            ),
        ] {
            let mut tried = RightsReport::default();
            tried.heard(&line, Some(&Error::new(ErrorKind::Unknown, text)));
            assert_eq!(tried.commands["+hget"] == Right::Granted, command, "{text}");
            assert_eq!(tried.keys.map(|outcome| outcome == Right::Granted), key, "{text}");
        }
    }

    #[test]
    fn right_to_a_subcommand_is_a_right_of_its_own() {
        assert_eq!(right_of(&line_of("CLIENT SETNAME a")), "+client|setname");
        assert_eq!(right_of(&line_of("SCAN 0")), "+scan");
    }
}
