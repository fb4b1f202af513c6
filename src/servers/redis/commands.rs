//! The commands for the server: scripts by their hashes, the request for the time, and the wait for replicas.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use fred::types::Value;
use futures_util::future::try_join_all;

use super::connection::{Line, Told, words};
use super::failure;
use super::pipeline;
use super::server_info::check_server;
use crate::protocol::interface::{ConnectionId, Failure, Priority};
use crate::protocol::script::ScriptCall;
use crate::servers::redis::script_set::ScriptSet;
use crate::time::deadline_queue::GivesUp;
use crate::time::server_time::millis;

/// How many keys a server looks at in one `SCAN`. This takes it some tenths of a ms.
const SCANNED_AT_ONCE: &str = "1000";

#[derive(Debug)]
pub(super) struct RedisCommand {
    body: CommandBody,
    asking: bool,
    priority: Priority,
}

#[derive(Debug)]
enum CommandBody {
    Plain(Vec<Cow<'static, str>>),
    /// A script, which is called by its hash.
    Script(ScriptCall),
}

impl RedisCommand {
    fn plain(priority: Priority, words: Vec<Cow<'static, str>>) -> RedisCommand {
        RedisCommand {
            body: CommandBody::Plain(words),
            asking: false,
            priority,
        }
    }

    pub(super) fn script(script_call: ScriptCall, priority: Priority) -> RedisCommand {
        RedisCommand {
            body: CommandBody::Script(script_call),
            asking: false,
            priority,
        }
    }

    /// Asks for the server time, and does nothing else.
    pub(super) fn time() -> RedisCommand {
        RedisCommand::plain(Priority::Ask, vec!["TIME".into()])
    }

    /// Asks a cluster which server has which slots.
    pub(super) fn slots() -> RedisCommand {
        RedisCommand::plain(Priority::Keep, vec!["CLUSTER".into(), "SLOTS".into()])
    }

    /// The same command for a server that is still importing the slot, as an `ASK` reply demands.
    pub(super) fn asking(self, asking: bool) -> RedisCommand {
        RedisCommand { asking, ..self }
    }

    /// A PING with this nonce, which is its reply.
    pub(super) fn ping(nonce: &str) -> RedisCommand {
        RedisCommand::plain(Priority::Keep, vec!["PING".into(), nonce.to_owned().into()])
    }

    /// Waits until this many replicas have all earlier writes of the same connection, but no longer than
    /// `within`. That time is cut to whole ms, and is at least 1 ms. [`waited`](RedisCommand::waited) reads
    /// the reply.
    pub(super) fn wait(replicas: u32, within: Duration) -> RedisCommand {
        // 0 would mean to wait for ever.
        let within = millis(within).max(1).to_string();
        let words = vec!["WAIT".into(), replicas.to_string().into(), within.into()];
        RedisCommand::plain(Priority::Keep, words)
    }

    /// How many replicas have the writes. Returns `None` for a reply to another command.
    pub(super) fn waited(reply: &Value) -> Option<u32> {
        match reply {
            Value::Integer(number) => u32::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Lists some of the keys that may be locks under this prefix. [`RedisCommand::scanned`] reads the reply.
    pub(super) fn scan(prefix: &str, cursor: u64) -> RedisCommand {
        let mut pattern = String::new();
        for c in prefix.chars() {
            if r"*?[]\".contains(c) {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        // What kind of lock a key is of stands before the hash tag.
        pattern.push_str(":*{*");
        let words = vec![
            "SCAN".into(),
            cursor.to_string().into(),
            "MATCH".into(),
            pattern.into(),
            "COUNT".into(),
            SCANNED_AT_ONCE.into(),
            "TYPE".into(),
            "hash".into(),
        ];
        RedisCommand::plain(Priority::Ask, words)
    }

    /// The position after the listed keys, 0 at the end, and those keys that are UTF-8. Returns `None` for a
    /// reply to another command.
    pub(super) fn scanned(reply: &Value) -> Option<(u64, Vec<String>)> {
        let Value::Array(parts) = reply else { return None };
        let [cursor, Value::Array(keys)] = &parts[..] else {
            return None;
        };
        let cursor = cursor.as_str()?.parse().ok()?;
        Some((cursor, keys.iter().filter_map(Value::as_string).collect()))
    }

    /// Appends the command. If it calls a script, that is one of these. Returns the number of the replies
    /// that come before its own one.
    fn write(&self, out: &mut Vec<u8>, scripts: &ScriptSet) -> usize {
        // ASKING applies to the next command.
        if self.asking {
            words(out, 1, [&b"ASKING"[..]].into_iter());
        }
        match &self.body {
            CommandBody::Plain(command) => {
                words(out, command.len(), command.iter().map(|word| word.as_bytes()));
            }
            CommandBody::Script(script_call) => {
                let text = script_call.text.as_bytes();
                let args = script_call.words.iter().map(|word| &text[word.clone()]);
                let command = [&b"EVALSHA"[..], scripts.sha(script_call.script).as_bytes()];
                words(out, 2 + args.len(), command.into_iter().chain(args));
            }
        }
        usize::from(self.asking)
    }
}

impl pipeline::Command for RedisCommand {
    fn priority(&self) -> Priority {
        self.priority
    }

    fn gives_up(&self) -> GivesUp {
        match &self.body {
            CommandBody::Script(script_call) => script_call.gives_up(),
            CommandBody::Plain(..) => GivesUp::Unknown,
        }
    }

    fn prepare(&mut self, on: ConnectionId) -> Result<(), Failure> {
        match &mut self.body {
            CommandBody::Script(script_call) => script_call.stamp(on).ok_or(Failure::GivenUp),
            CommandBody::Plain(..) => Ok(()),
        }
    }
}

/// Loads these scripts into the server. A failure means that no call was executed. A server of a quorum does
/// not get them while it may have forgotten holds.
///
/// One process must answer both `INFO` and `SCRIPT LOAD`, because the uptime before a restart says nothing. A
/// restart breaks the connection, and then neither is sent again.
pub(super) async fn load(line: &Line, scripts: &ScriptSet) -> Result<(), Failure> {
    if let Some(quorum) = scripts.quorum {
        let info = line.call(&["INFO", "server"]).await?;
        check_server(&info.as_string().unwrap_or_default(), quorum)?;
    }
    let loads = scripts.texts().map(|text| line.call(&["SCRIPT", "LOAD", &text]));
    try_join_all(loads.collect::<Vec<_>>()).await.map(drop)
}

/// A connection in the form that the pipeline uses.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) line: Line,
    /// The scripts of the calls on this connection.
    pub(super) scripts: Arc<ScriptSet>,
}

impl pipeline::Wire for Wire {
    type Command = RedisCommand;
    type Reply = Value;

    fn send(&self, command: RedisCommand, told: impl FnOnce(RedisCommand) -> Told<Value> + Send + 'static) {
        self.line
            .send(|out| (command.write(out, &self.scripts), told(command)));
    }

    /// Called by the task of the connection, on whose runtime the scripts are loaded.
    fn load(&self, then: impl FnOnce(Result<(), Failure>) + Send + 'static) {
        let wire = self.clone();
        tokio::spawn(async move {
            let loaded = load(&wire.line, &wire.scripts).await;
            then(loaded.map_err(failure::not_sent));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::redis::pipeline::Command as _;

    /// A program asks for the time and for lists as often as it likes. The other commands are made once in a
    /// while, by one task for each connection.
    #[test]
    fn commands_of_operators_wait_for_the_window() {
        let wait = RedisCommand::wait(0, Duration::ZERO);
        for (command, priority) in [
            (RedisCommand::time(), Priority::Ask),
            (RedisCommand::scan("fairlock", 0), Priority::Ask),
            (RedisCommand::slots(), Priority::Keep),
            (wait, Priority::Keep),
            (RedisCommand::ping("1"), Priority::Keep),
        ] {
            assert_eq!(command.priority(), priority, "{command:?}");
        }
    }
}
