//! The commands for the server in the form that fred takes: scripts by their hashes, the request for the
//! time, and the wait for replicas.

use std::iter;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use fred::bytes::Bytes;
use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::{ClientLike, LuaInterface};
use fred::types::{ClusterHash, CustomCommand, InfoKind, Value};
use futures_util::future::try_join_all;
use tokio::runtime::{EnterGuard, Handle};

use super::connection::echoes;
use super::failure;
use super::server_info::check_server;
use super::slot::SlotGate;
use crate::protocol::interface::{ConnectionId, Failure, Priority};
use crate::protocol::script::ScriptCall;
use crate::servers::pipeline;
use crate::servers::pipeline::{WireError, WireErrorKind};
use crate::servers::redis::script_set::ScriptSet;
use crate::time::deadline_queue::GivesUp;
use crate::time::server_time::millis;

/// How many keys a server looks at in one `SCAN`. This takes it some tenths of a ms.
const SCANNED_AT_ONCE: &str = "1000";

#[derive(Debug)]
pub(super) struct RedisCommand {
    body: CommandBody,
    asking: bool,
    gate: Option<SlotGate>,
    priority: Priority,
}

#[derive(Debug)]
enum CommandBody {
    Plain(&'static str, Vec<Value>),
    /// A script, which is called by its hash.
    Script(ScriptCall),
}

impl RedisCommand {
    fn plain(priority: Priority, name: &'static str, args: Vec<Value>) -> RedisCommand {
        RedisCommand {
            body: CommandBody::Plain(name, args),
            asking: false,
            gate: None,
            priority,
        }
    }

    pub(super) fn script(script_call: ScriptCall, priority: Priority) -> RedisCommand {
        RedisCommand {
            body: CommandBody::Script(script_call),
            asking: false,
            gate: None,
            priority,
        }
    }

    /// Asks for the server time, and does nothing else.
    pub(super) fn time() -> RedisCommand {
        RedisCommand::plain(Priority::Ask, "TIME", Vec::new())
    }

    /// Asks a cluster which server has which slots.
    pub(super) fn slots() -> RedisCommand {
        RedisCommand::plain(Priority::Keep, "CLUSTER", vec![Value::from("SLOTS")])
    }

    /// The same command for a server that is still importing the slot, as an `ASK` reply demands.
    pub(super) fn asking(self, asking: bool) -> RedisCommand {
        RedisCommand { asking, ..self }
    }

    /// The same command, which is not written while the gate is closed.
    pub(super) fn behind(self, gate: Option<SlotGate>) -> RedisCommand {
        RedisCommand { gate, ..self }
    }

    /// Waits until this many replicas have all earlier writes of the same connection, but no longer than
    /// `within`. That time is cut to whole ms, and is at least 1 ms. [`waited`](RedisCommand::waited) reads
    /// the reply.
    pub(super) fn wait(replicas: u32, within: Duration) -> RedisCommand {
        // 0 would mean to wait for ever.
        let args = [u64::from(replicas), millis(within).max(1)];
        let args = args.map(|number| Value::from(number.to_string()));
        RedisCommand::plain(Priority::Keep, "WAIT", args.into())
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
        let args = [
            &cursor.to_string(),
            "MATCH",
            &pattern,
            "COUNT",
            SCANNED_AT_ONCE,
            "TYPE",
            "hash",
        ];
        RedisCommand::plain(Priority::Ask, "SCAN", args.into_iter().map(Value::from).collect())
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

    /// Sends the command unchanged. If it calls a script, that is one of these.
    pub(super) async fn run(self, client: &Client, scripts: &ScriptSet) -> Result<Value, Error> {
        let custom = |name| CustomCommand::new_static(name, ClusterHash::Random, false);
        let (name, args) = match self.body {
            CommandBody::Plain(name, args) => (name, args),
            CommandBody::Script(script_call) => ("EVALSHA", args(script_call, scripts)),
        };
        if !self.asking {
            return client.custom(custom(name), args).await;
        }
        // ASKING applies to the next command. In a pipeline, no other command comes between the two.
        let both = client.pipeline();
        let _: () = both.custom(custom("ASKING"), Vec::<Value>::new()).await?;
        let _: () = both.custom(custom(name), args).await?;
        both.last().await
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

    fn prepare(self, on: ConnectionId) -> Result<RedisCommand, Failure> {
        if let Some(gate) = &self.gate {
            gate.check()?;
        }
        let body = match self.body {
            CommandBody::Script(script_call) => {
                CommandBody::Script(script_call.stamped(on).ok_or(Failure::GivenUp)?)
            }
            plain @ CommandBody::Plain(..) => plain,
        };
        Ok(RedisCommand { body, ..self })
    }
}

/// The arguments of EVALSHA.
fn args(script_call: ScriptCall, scripts: &ScriptSet) -> Vec<Value> {
    let sha = scripts.sha(script_call.script);
    let text = Bytes::from(script_call.text);
    let words = script_call.words.into_iter();
    let words = words.map(|word| Value::Bytes(text.slice(word)));
    iter::once(sha).chain(words).collect()
}

/// Loads these scripts into the server. A failure means that no call was executed. A server of a quorum does
/// not get them while it may have forgotten holds.
///
/// One process must answer both `INFO` and `SCRIPT LOAD`, because the uptime before a restart says nothing. A
/// restart breaks the connection, and then neither is sent again. What was written has had its one attempt
/// (`max_command_attempts`). What was not would go to fred's next connection, but there is none:
/// [`connection`](super::connection) says why.
pub(super) async fn load(client: &Client, scripts: &ScriptSet) -> Result<(), Failure> {
    if let Some(quorum) = scripts.quorum {
        let info = client.info::<String>(Some(InfoKind::Server)).await;
        let info = info.map_err(|error| failure::not_sent(failure::classify(&error)))?;
        check_server(&info, quorum)?;
    }
    let loads = scripts.texts().map(|text| client.script_load::<Value, _>(text));
    match try_join_all(loads).await {
        Ok(_) => Ok(()),
        Err(error) => Err(failure::not_sent(failure::classify(&error))),
    }
}

/// A connection in the form that the pipeline uses.
#[derive(Clone)]
pub(super) struct Wire {
    client: Client,
    /// The scripts of the calls on this connection.
    scripts: Arc<ScriptSet>,
    runtime: Handle,
}

impl Wire {
    /// A connection that belongs to the current runtime.
    pub(super) fn new(client: &Client, scripts: &Arc<ScriptSet>) -> Wire {
        Wire {
            client: client.clone(),
            scripts: Arc::clone(scripts),
            runtime: Handle::current(),
        }
    }
}

impl pipeline::Wire for Wire {
    type Command = RedisCommand;
    type Reply = Value;

    fn send(&self, command: RedisCommand) -> Pin<Box<dyn Future<Output = Result<Value, WireError>> + Send>> {
        let (client, scripts) = (self.client.clone(), Arc::clone(&self.scripts));
        Box::pin(async move {
            let reply = command.run(&client, &scripts).await;
            reply.map_err(|error| WireError {
                kind: match failure::code(&error) {
                    Some("NOSCRIPT") => WireErrorKind::NoScript,
                    Some("READONLY") => WireErrorKind::ReadOnly,
                    _ if *error.kind() == ErrorKind::Timeout => WireErrorKind::Timeout,
                    _ => WireErrorKind::Other,
                },
                failure: failure::classify(&error),
            })
        })
    }

    fn enter(&self) -> Option<EnterGuard<'_>> {
        Some(self.runtime.enter())
    }

    fn load(&self) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> {
        let (client, scripts) = (self.client.clone(), Arc::clone(&self.scripts));
        Box::pin(async move { load(&client, &scripts).await })
    }

    fn ping(nonce: &str) -> RedisCommand {
        RedisCommand::plain(Priority::Keep, "PING", vec![Value::from(nonce)])
    }

    fn echoes(reply: &Value, nonce: &str) -> bool {
        echoes(reply, nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::pipeline::{Command as _, Wire as _};

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
            (Wire::ping("1"), Priority::Keep),
        ] {
            assert_eq!(command.priority(), priority, "{command:?}");
        }
    }
}
