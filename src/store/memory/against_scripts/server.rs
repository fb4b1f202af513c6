//! A real server with the scripts, spoken to over blocking sockets.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::key::Keys;
use crate::script::{self, Invocation, Value};
use crate::store::redis::tests::server::Server;

/// A clock that a key shows: µs, of 16 digits.
const CLOCK: &str = "
local function server_clock()
  local us = redis.call('GET', '{test}:clock')
  return us, tonumber(string.sub(us, 1, 13))
end
";

#[derive(Debug, PartialEq)]
enum Resp {
    Int(i64),
    Text(String),
    Nil,
    Array(Vec<Resp>),
    Error(String),
}

impl Resp {
    /// All text and numbers in it, in order.
    fn flatten(self, into: &mut Vec<String>) {
        match self {
            Resp::Int(number) => into.push(number.to_string()),
            Resp::Text(text) => into.push(text),
            Resp::Array(elements) => elements.into_iter().for_each(|element| element.flatten(into)),
            other => panic!("{other:?}"),
        }
    }

    fn texts(self) -> Vec<String> {
        let mut texts = Vec::new();
        self.flatten(&mut texts);
        texts
    }

    fn value(self) -> Value {
        match self {
            Resp::Int(number) => Value::Int(number),
            Resp::Text(text) => Value::Text(text),
            other => panic!("{other:?}"),
        }
    }
}

struct Connection {
    reader: BufReader<TcpStream>,
    /// Commands not sent yet.
    pending: Vec<u8>,
}

impl Connection {
    fn to(server: &Server) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Connection {
            reader: BufReader::new(stream),
            pending: Vec::new(),
        }
    }

    fn queue(&mut self, parts: &[&str]) {
        write!(self.pending, "*{}\r\n", parts.len()).unwrap();
        for part in parts {
            write!(self.pending, "${}\r\n{part}\r\n", part.len()).unwrap();
        }
    }

    fn send(&mut self) {
        self.reader.get_mut().write_all(&self.pending).unwrap();
        self.pending.clear();
    }

    fn ask(&mut self, parts: &[&str]) -> Resp {
        self.queue(parts);
        self.send();
        self.read()
    }

    fn read(&mut self) -> Resp {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        let (kind, rest) = line.trim_end().split_at(1);
        let number = || rest.parse::<i64>().unwrap();
        match kind {
            ":" => Resp::Int(number()),
            "+" => Resp::Text(rest.to_owned()),
            "-" => Resp::Error(rest.to_owned()),
            "$" | "*" if number() < 0 => Resp::Nil,
            "$" => {
                let mut text = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.reader.read_exact(&mut text).unwrap();
                text.truncate(text.len() - 2);
                Resp::Text(String::from_utf8(text).unwrap())
            }
            "*" => Resp::Array((0..number()).map(|_| self.read()).collect()),
            _ => panic!("{line:?}"),
        }
    }
}

/// With one file of `lua/` replaced by another: `<file>:<other>`. The mutation gate sets it, so that nothing must be
/// built for each of its edits.
fn edited(text: String) -> String {
    let Ok(files) = std::env::var("FAIRLOCK_TEST_EDITED") else {
        return text;
    };
    let (file, other) = files.split_once(':').unwrap();
    let [file, other] = [file, other].map(|path| std::fs::read_to_string(path).unwrap());
    text.replace(&file, &other)
}

/// The server and its two connections.
pub(super) struct Scripts {
    commands: Connection,
    subscriber: Connection,
    shas: HashMap<&'static str, String>,
    received: Vec<(String, String)>,
    _server: Server,
}

impl Scripts {
    /// The scripts under the test's clock, and with another bound of the hand-over.
    pub(super) fn start(bound: usize) -> Scripts {
        let server = Server::start();
        let mut commands = Connection::to(&server);
        let mut shas = HashMap::new();
        for script in script::ALL {
            let text = edited(script.with_clock(CLOCK));
            let bounded = text.replace("local BOUND = 10000\n", &format!("local BOUND = {bound}\n"));
            assert_eq!(
                bounded != text,
                text.contains("BOUND"),
                "{}: the bound",
                script.name
            );
            let sha = commands.ask(&["SCRIPT", "LOAD", &bounded]).texts().remove(0);
            shas.insert(script.name, sha);
        }
        Scripts {
            subscriber: Connection::to(&server),
            commands,
            shas,
            received: Vec::new(),
            _server: server,
        }
    }

    /// Without data and subscriptions.
    pub(super) fn reset(&mut self) {
        self.commands.ask(&["FLUSHALL"]);
        self.subscriber.queue(&["UNSUBSCRIBE"]);
        self.messages();
    }

    pub(super) fn call(&mut self, invocation: &Invocation, now_us: u64) -> Vec<Value> {
        let count = invocation.keys.len().to_string();
        let mut parts = vec!["EVALSHA", &self.shas[invocation.script.name], &count];
        parts.extend(invocation.keys.iter().chain(&invocation.args).map(String::as_str));
        self.commands.queue(&["SET", "{test}:clock", &now_us.to_string()]);
        self.commands.queue(&parts);
        self.commands.send();
        self.commands.read();
        match self.commands.read() {
            Resp::Array(elements) => elements.into_iter().map(Resp::value).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// Sends a command as an operator would.
    pub(super) fn tell(&mut self, command: &[&str]) {
        let reply = self.commands.ask(command);
        assert!(!matches!(reply, Resp::Error(_)), "{reply:?}");
    }

    /// What a script of the test's own returns.
    pub(super) fn evaluate(&mut self, script: &str) -> Vec<String> {
        self.commands
            .ask(&["EVAL", &edited(script.to_owned()), "0"])
            .texts()
    }

    pub(super) fn ttl_ms(&mut self, key: &str) -> i64 {
        match self.commands.ask(&["PTTL", key]) {
            Resp::Int(ttl) => ttl,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn subscribe(&mut self, channel: &str) {
        self.subscriber.queue(&["SUBSCRIBE", channel]);
        self.messages_before_barrier();
    }

    pub(super) fn unsubscribe(&mut self, channel: &str) {
        self.subscriber.queue(&["UNSUBSCRIBE", channel]);
        self.messages_before_barrier();
    }

    /// What was published since the last time, as channel and text.
    pub(super) fn messages(&mut self) -> Vec<(String, String)> {
        self.messages_before_barrier();
        std::mem::take(&mut self.received)
    }

    fn messages_before_barrier(&mut self) {
        self.subscriber.queue(&["PING", "barrier"]);
        self.subscriber.send();
        loop {
            let Resp::Array(elements) = self.subscriber.read() else {
                // Without a subscription the connection is an ordinary one.
                return;
            };
            let elements: Vec<_> = elements.into_iter().filter(|e| *e != Resp::Nil).collect();
            match Resp::Array(elements).texts().as_slice() {
                [kind, channel, text] if kind == "message" => {
                    self.received.push((channel.clone(), text.clone()));
                }
                [kind, _] if kind == "pong" => return,
                _ => {}
            }
        }
    }

    /// The lock's hash, its queue, its clients and its spin lock: each with scores or, by field, values.
    pub(super) fn data(&mut self, keys: &Keys) -> [Vec<String>; 4] {
        let all = [&keys.lock, &keys.queue, &keys.clients, &keys.spin];
        self.commands.queue(&["HGETALL", &keys.lock]);
        self.commands
            .queue(&["ZRANGE", &keys.queue, "0", "-1", "WITHSCORES"]);
        self.commands
            .queue(&["ZRANGE", &keys.clients, "0", "-1", "WITHSCORES"]);
        self.commands.queue(&["HGETALL", &keys.spin]);
        for key in all {
            self.commands.queue(&["PTTL", key]);
        }
        self.commands.send();
        let mut data = all.map(|_| self.commands.read().texts());
        for (key, data) in all.into_iter().zip(&data) {
            let Resp::Int(ttl) = self.commands.read() else {
                panic!("PTTL tells a number");
            };
            assert_eq!(ttl > 0, !data.is_empty(), "every key must have a TTL: {key}");
        }
        let by_field: BTreeMap<_, _> = data[0]
            .chunks(2)
            .map(|pair| (pair[0].clone(), pair[1].clone()))
            .collect();
        data[0] = by_field
            .into_iter()
            .flat_map(|(field, value)| [field, value])
            .collect();
        data
    }
}
