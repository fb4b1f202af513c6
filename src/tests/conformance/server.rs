//! A real server with the scripts, spoken to over blocking sockets.

use std::collections::HashMap;

use fairlock_testkit::{BlockingClient, Resp, Server};

use super::dump::{self, DUMP, Data};
use super::step::Trouble;
use crate::store::ConnectionId;
use crate::store::ids::ClientId;
use crate::store::keys::Keys;
use crate::store::redis::script;
use crate::store::redis::script::ScriptCall;

/// A clock that shows the last key of the call: µs, of 16 digits. Arguments may be left out at their end.
const CLOCK: &str = "
local now_us = KEYS[#KEYS]
KEYS[#KEYS] = nil
local now = string.sub(now_us, 1, 13)
";

/// A connection by RESP3, on which messages come beside replies.
struct Connection {
    client: BlockingClient,
    /// Channel and text of what was published.
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

    /// The next reply, with the messages before it put aside.
    fn reply(&mut self) -> Resp {
        loop {
            let parts = match self.client.read().unwrap() {
                Resp::Push(parts) => parts,
                reply => return reply,
            };
            match &parts[..] {
                [kind, channel, text] if kind.text() == "message" => {
                    self.messages
                        .push((channel.text().to_owned(), text.text().to_owned()));
                }
                _ => {}
            }
        }
    }
}

/// What a reply is to.
#[derive(Clone, Copy)]
enum Awaited {
    Call,
    /// A command that must succeed.
    Command,
    Look,
}

/// A script's reply, or the error.
pub(super) type Reply = Result<String, String>;

/// What a look at a lock shows.
pub(super) struct Seen {
    /// The reply to the call before it, if there was one.
    pub(super) reply: Option<Reply>,
    pub(super) data: Data,
    /// For how long the server keeps each of the four keys, in ms; negative without the key.
    pub(super) kept_ms: [i64; 4],
    /// What was published since the last look, as channel and text.
    pub(super) messages: Vec<(String, String)>,
}

/// With one file of `lua/` replaced by another: `<file>:<other>`. The mutation gate sets it, so that nothing
/// must be built for each of its edits.
fn edited(text: String) -> String {
    let Ok(files) = std::env::var("FAIRLOCK_TEST_EDITED") else {
        return text;
    };
    let (file, other) = files.split_once(':').unwrap();
    let [file, other] = [file, other].map(|path| std::fs::read_to_string(path).unwrap());
    text.replace(&file, &other)
}

/// The server, and its connections: one that subscribes and calls, and one of a user who may publish to one
/// client alone.
pub(super) struct Scripts {
    commands: Connection,
    awaited: Vec<Awaited>,
    muffled: Connection,
    shas: HashMap<&'static str, String>,
    _server: Server,
}

impl Scripts {
    /// The scripts under the test's clock, and with another bound of the hand-over.
    pub(super) fn start(bound: usize, heard: &ClientId) -> Scripts {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start());
        let mut commands = Connection::to(&server, &["HELLO", "3"]);
        let texts = script::ALL.map(|script| {
            let source = edited(script.with_clock(CLOCK));
            let bounded = source.replace("local BOUND = 500\n", &format!("local BOUND = {bound}\n"));
            assert_eq!(
                bounded != source,
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
        let user = [&["ACL", "SETUSER", "muffled", "on", "nopass"], &rights[..]].concat();
        assert_eq!(commands.ask(&user).text(), "OK");
        Scripts {
            muffled: Connection::to(&server, &["HELLO", "3", "AUTH", "muffled", "any"]),
            commands,
            awaited: Vec::new(),
            shas,
            _server: server,
        }
    }

    /// Leaves no data and no subscriptions.
    pub(super) fn reset(&mut self) {
        self.commands.client.forget();
        self.awaited.clear();
        self.command(&["UNSUBSCRIBE"]);
        self.command(&["FLUSHALL"]);
        self.sample();
        self.commands.messages.clear();
    }

    /// Queues a command as an operator sends it.
    pub(super) fn command(&mut self, parts: &[&str]) {
        self.commands.client.queue(parts);
        // What changes subscriptions is answered by a message.
        if !parts[0].ends_with("SUBSCRIBE") {
            self.awaited.push(Awaited::Command);
        }
    }

    /// Queues a call.
    pub(super) fn call(&mut self, script_call: ScriptCall, now_us: u64) {
        let parts = self.parts(script_call, now_us);
        self.commands
            .client
            .queue(&parts.iter().map(String::as_str).collect::<Vec<_>>());
        self.awaited.push(Awaited::Call);
    }

    /// Queues a look at a lock's data.
    pub(super) fn look(&mut self, keys: &Keys) {
        let all = [&keys.lock, &keys.queue, &keys.clients, &keys.spin];
        let mut look = vec!["EVALSHA", &self.shas["dump"], "4"];
        look.extend(all.map(String::as_str));
        self.commands.client.queue(&look);
        self.awaited.push(Awaited::Look);
    }

    /// What a script of the test's own returns.
    pub(super) fn evaluate(&mut self, script: &str) -> Vec<String> {
        let script = script::inlined(&edited(script.to_owned()));
        let reply = self.commands.ask(&["EVAL", &script, "0"]);
        reply.array().iter().map(ToString::to_string).collect()
    }

    /// Sends what is queued, and returns what each look showed.
    pub(super) fn sample(&mut self) -> Vec<Seen> {
        self.commands.client.send().unwrap();
        let (mut all, mut call) = (Vec::new(), None);
        for awaited in std::mem::take(&mut self.awaited) {
            let reply = self.commands.reply();
            match awaited {
                Awaited::Call => call = Some(line(reply)),
                Awaited::Command => assert!(!matches!(reply, Resp::Error(_)), "{reply:?}"),
                Awaited::Look => all.push(self.seen(call.take(), &reply)),
            }
        }
        all
    }

    /// Makes one call, with nothing queued before it. What it changed or published is for the next look.
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
            Some(Trouble::Muffled) => return line(self.muffled.ask(&parts)),
            Some(Trouble::Full) => "maxmemory",
            Some(Trouble::ReadOnly) => "min-replicas-to-write",
        };
        let commands = &mut self.commands;
        assert_eq!(commands.ask(&["CONFIG", "SET", setting, "1"]).text(), "OK");
        let reply = commands.ask(&parts);
        assert_eq!(commands.ask(&["CONFIG", "SET", setting, "0"]).text(), "OK");
        line(reply)
    }

    fn parts(&self, script_call: ScriptCall, now_us: u64) -> Vec<String> {
        let script_call = script_call
            .stamped(ConnectionId::default())
            .expect("a call that is not given up");
        let (keys, args) = script_call.keys_and_args();
        let (number, now) = ((keys.len() + 1).to_string(), now_us.to_string());
        let before = ["EVALSHA", &self.shas[script_call.script.name], &number];
        let all = before.into_iter().chain(keys).chain([&*now]).chain(args);
        all.map(str::to_owned).collect()
    }

    fn seen(&mut self, reply: Option<Reply>, look: &Resp) -> Seen {
        let (data, kept_ms) = look.array().split_at(4);
        let mut data: Data = std::array::from_fn(|at| data[at].text().to_owned());
        let [lock, queue, ..] = &data;
        assert!(
            queue.is_empty() || !dump::rules_out_waiters(lock),
            "{lock} rules out {queue}"
        );
        for hash in [0, 3] {
            data[hash] = dump::ordered(&data[hash]);
        }
        Seen {
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
