//! A real server with the scripts, reached over blocking sockets.

use std::collections::HashMap;
use std::time::Duration;

use fairlock_testkit::{BlockingClient, Resp, Server};

use super::dump::{self, DUMP, Data};
use super::step::Trouble;
use crate::protocol::ConnectionId;
use crate::protocol::ids::ClientId;
use crate::protocol::keys::Keys;
use crate::protocol::script;
use crate::protocol::script::ScriptCall;
use crate::types::status::Kind;

/// A clock that reads the last key of the call: µs, in 16 digits. Trailing arguments may be left out, so an
/// argument could not carry it.
const CLOCK: &str = "
local now_us = KEYS[#KEYS]
KEYS[#KEYS] = nil
local now = string.sub(now_us, 1, 13)
";

/// A RESP3 connection, which receives messages between replies.
struct Connection {
    client: BlockingClient,
    /// Published messages, as channel and text.
    messages: Vec<(String, String)>,
}

impl Connection {
    fn to(server: &Server, hello: &[&str]) -> Connection {
        let mut connection = Connection {
            client: BlockingClient::connect(("127.0.0.1", server.port())).unwrap(),
            messages: Vec::new(),
        };
        connection.ask(hello);
        connection
    }

    fn ask(&mut self, parts: &[&str]) -> Resp {
        self.client.queue(parts);
        self.client.send().unwrap();
        self.reply()
    }

    /// Returns the next reply, and keeps the messages before it.
    fn reply(&mut self) -> Resp {
        loop {
            let parts = match self.client.read().unwrap() {
                Resp::Push(parts) => parts,
                reply => return reply,
            };
            match &parts[..] {
                [kind, channel, text] if ["message", "smessage"].contains(&kind.text()) => {
                    self.messages
                        .push((channel.text().to_owned(), text.text().to_owned()));
                }
                _ => {}
            }
        }
    }
}

/// What a reply answers.
#[derive(Clone, Copy)]
enum Awaited {
    Call,
    /// A command that must succeed.
    Command,
    Snapshot(Kind),
}

/// A script's reply or error.
pub(super) type Reply = Result<String, String>;

/// The state of a lock on the server.
pub(super) struct Snapshot {
    /// The reply to the call before the snapshot, if there was one.
    pub(super) reply: Option<Reply>,
    pub(super) data: Data,
    /// The time to live of each of the four keys, in ms; negative if the key does not exist.
    pub(super) kept_ms: [i64; 3],
    /// The messages since the last snapshot, as channel and text.
    pub(super) messages: Vec<(String, String)>,
}

/// Replaces one file of `lua/` by another, given as `<file>:<other>`. The mutation gate sets this variable,
/// so that it need not rebuild the crate for each edit.
fn edited(text: String) -> String {
    let Ok(files) = std::env::var("FAIRLOCK_TEST_EDITED") else {
        return text;
    };
    let (file, other) = files.split_once(':').unwrap();
    let [file, other] = [file, other].map(|path| std::fs::read_to_string(path).unwrap());
    text.replace(&file, &other)
}

/// A server with two connections. One subscribes and calls; the other has a user that may publish only to one
/// client.
pub(super) struct Scripts {
    commands: Connection,
    awaited: Vec<Awaited>,
    restricted: Connection,
    shas: HashMap<&'static str, String>,
    _server: Server,
}

impl Scripts {
    /// Loads the scripts with the test's clock and another bound of the hand-over. `heard` is the only client
    /// to which the second user may publish.
    pub(super) fn start(bound: usize, heard: &ClientId) -> Scripts {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start());
        let mut commands = Connection::to(&server, &["HELLO", "3"]);
        let texts = script::ALL.map(|script| {
            let source = edited(script.with_clock(CLOCK));
            let line = "local BOUND = 100\n";
            let bounded = source.replace(line, &format!("local BOUND = {bound}\n"));
            assert_eq!(
                source.contains(line),
                source.contains("BOUND"),
                "{}: the bound",
                script.name
            );
            (script.name, script::inlined(&bounded))
        });
        let texts = texts.into_iter().chain([("dump", DUMP.to_owned())]);
        let shas = texts.map(|(name, text)| (name, commands.ask(&["SCRIPT", "LOAD", &text]).to_string()));
        let shas = shas.collect();
        let rights = ["allkeys", "allcommands", "resetchannels", &format!("&*{heard}")];
        let user = [&["ACL", "SETUSER", "restricted", "on", "nopass"], &rights[..]].concat();
        assert_eq!(commands.ask(&user).text(), "OK");
        Scripts {
            restricted: Connection::to(&server, &["HELLO", "3", "AUTH", "restricted", "any"]),
            commands,
            awaited: Vec::new(),
            shas,
            _server: server,
        }
    }

    /// Removes all data and subscriptions.
    pub(super) fn reset(&mut self) {
        self.commands.client.forget();
        self.awaited.clear();
        self.command(&["UNSUBSCRIBE"]);
        self.command(&["FLUSHALL"]);
        self.send();
        self.commands.messages.clear();
    }

    /// Queues a command as an operator would send it.
    pub(super) fn command(&mut self, parts: &[&str]) {
        self.commands.client.queue(parts);
        // Subscription commands are answered by messages.
        if !parts[0].ends_with("SUBSCRIBE") {
            self.awaited.push(Awaited::Command);
        }
    }

    /// Queues a call of a script.
    pub(super) fn call(&mut self, script_call: ScriptCall, now_us: u64) {
        let parts = self.parts(script_call, now_us);
        self.commands
            .client
            .queue(&parts.iter().map(String::as_str).collect::<Vec<_>>());
        self.awaited.push(Awaited::Call);
    }

    /// Queues a snapshot of a lock's data.
    pub(super) fn queue_snapshot(&mut self, keys: &Keys) {
        let last = match keys.kind {
            Kind::Lock => &keys.spin,
            _ => &keys.timers,
        };
        let all = [&keys.lock, &keys.queue, last];
        let mut dump = vec!["EVALSHA", &self.shas["dump"], "3"];
        dump.extend(all.map(String::as_str));
        self.commands.client.queue(&dump);
        self.awaited.push(Awaited::Snapshot(keys.kind));
    }

    /// Runs a script that the test brings, and returns its reply.
    pub(super) fn evaluate(&mut self, script: &str) -> Vec<String> {
        let script = script::inlined(&edited(script.to_owned()));
        let reply = self.commands.ask(&["EVAL", &script, "0"]);
        reply.array().iter().map(ToString::to_string).collect()
    }

    /// Sends everything queued, and returns the snapshots.
    pub(super) fn send(&mut self) -> Vec<Snapshot> {
        self.commands.client.send().unwrap();
        let (mut all, mut call) = (Vec::new(), None);
        for awaited in std::mem::take(&mut self.awaited) {
            let reply = self.commands.reply();
            match awaited {
                Awaited::Call => call = Some(line(reply)),
                Awaited::Command => assert!(!matches!(reply, Resp::Error(_)), "{reply:?}"),
                Awaited::Snapshot(kind) => all.push(self.snapshot(kind, call.take(), &reply)),
            }
        }
        all
    }

    /// Makes one call while nothing is queued. The next snapshot shows its effects.
    pub(super) fn call_in(
        &mut self,
        trouble: Option<Trouble>,
        script_call: ScriptCall,
        now_us: u64,
    ) -> Reply {
        let parts = self.parts(script_call, now_us);
        let parts: Vec<_> = parts.iter().map(String::as_str).collect();
        let setting = match trouble {
            None => return line(self.commands.ask(&parts)),
            Some(Trouble::NoPublish) => return line(self.restricted.ask(&parts)),
            Some(Trouble::Full) => "maxmemory",
            Some(Trouble::ReadOnly) => "min-replicas-to-write",
        };
        let commands = &mut self.commands;
        assert_eq!(commands.ask(&["CONFIG", "SET", setting, "1"]).text(), "OK");
        let reply = commands.ask(&parts);
        assert_eq!(commands.ask(&["CONFIG", "SET", setting, "0"]).text(), "OK");
        line(reply)
    }

    /// Makes one call by the fast paths of its script alone. `None` if they leave it to the rest.
    pub(super) fn call_fast(&mut self, script_call: ScriptCall, now_us: u64) -> Option<String> {
        let text = script::inlined(&edited(script_call.script.with_clock(CLOCK)));
        let (fast, _) = text.split_once("local function extend_ttl").expect("the rest");
        let mut parts = self.parts(script_call, now_us);
        (parts[0], parts[1]) = ("EVAL".to_owned(), format!("{fast}\nreturn ''"));
        let parts: Vec<_> = parts.iter().map(String::as_str).collect();
        let reply = line(self.commands.ask(&parts)).unwrap();
        (!reply.is_empty()).then_some(reply)
    }

    /// How long the server's thread that runs the scripts has been busy.
    pub(super) fn busy(&mut self) -> Duration {
        // In RESP3, only a script gets it as a text.
        let info = self
            .commands
            .ask(&["EVAL", "return redis.call('INFO', 'cpu')", "0"]);
        let times = info.text().lines().filter_map(|line| line.split_once(':'));
        let of_the_thread = times.filter(|(name, _)| name.ends_with("_main_thread"));
        let seconds = of_the_thread.map(|(_, seconds)| seconds.trim().parse::<f64>().unwrap());
        Duration::from_secs_f64(seconds.sum())
    }

    fn parts(&self, mut script_call: ScriptCall, now_us: u64) -> Vec<String> {
        script_call
            .stamp(ConnectionId::default())
            .expect("a call that is not given up");
        let (keys, args) = script_call.keys_and_args();
        let (number, now) = ((keys.len() + 1).to_string(), now_us.to_string());
        let before = ["EVALSHA", &self.shas[script_call.script.name], &number];
        let all = before.into_iter().chain(keys).chain([&*now]).chain(args);
        all.map(str::to_owned).collect()
    }

    fn snapshot(&mut self, kind: Kind, reply: Option<Reply>, dump: &Resp) -> Snapshot {
        let (data, kept_ms) = dump.array().split_at(3);
        let mut data: Data = std::array::from_fn(|at| data[at].text().to_owned());
        let [lock, queue, ..] = &data;
        assert!(
            queue.is_empty() || !dump::rules_out_waiters(lock),
            "{lock} rules out {queue}"
        );
        if kind == Kind::Lock {
            for hash in [0, 2] {
                data[hash] = dump::ordered(&data[hash]);
            }
        } else {
            data[0] = dump::ordered_permits(&data[0]);
        }
        Snapshot {
            reply,
            data,
            kept_ms: std::array::from_fn(|at| kept_ms[at].int()),
            messages: std::mem::take(&mut self.commands.messages),
        }
    }
}

fn line(reply: Resp) -> Reply {
    match reply {
        Resp::Error(error) => Err(error),
        reply => Ok(reply.text().to_owned()),
    }
}
