//! Tests of the store on real servers. Where only the way to the server matters, they use scripts of their
//! own.

mod calls;
mod connections;
mod flawed;
mod quorum;
mod rights;
mod subscriptions;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fairlock_testkit::{Proxy, Server, free_port};
use futures_util::future::join_all;
use tokio::time::Instant;

use super::*;
use crate::protocol::ids::{ClientId, RequestId};
use crate::protocol::keys::Keys;
use crate::protocol::script::{self, Declared, PubSubMode, ReplyError, Script, ScriptCall};
use crate::protocol::{
    Call, CallKind, Connections, Listener, Mode, Operation, Priority, ReleaseOutcome, ReleaseWhat, ServerId,
};
use crate::servers::Store;
use crate::time::server_time::ServerTime;
use crate::types::error::Error;

/// The options of a client that is patient with a busy machine.
pub(super) const OPTIONS: Options = Options {
    attempt_timeout: BOUND,
    server_timeout: BOUND,
    ping_every: Duration::from_millis(300),
    replicas: 0,
    quorum: None,
};
/// The options of a client that gives up soon, for tests about that.
const HASTY: Options = Options {
    attempt_timeout: Duration::from_millis(400),
    server_timeout: Duration::from_millis(1500),
    ..OPTIONS
};
/// The time within which everything must happen that waits for nothing, even on a busy machine. It is also
/// enough for everything that [`HASTY`] bounds.
const BOUND: Duration = Duration::from_secs(5);

static APPEND: Script = Script::new("append", "redis.call('RPUSH', KEYS[1], ARGV[1]) return ARGV[1]");

static APPEND_SLOWLY: Script = Script::new(
    "append slowly",
    "for _ = 1, 15000 do end redis.call('RPUSH', KEYS[1], ARGV[1]) return ARGV[1]",
);

/// Appends a text to a list. The text also selects the script, the priority and the reading of the reply.
#[derive(Clone, Debug)]
struct Append(String);

impl Operation for Append {
    type Reply = ();
    const KIND: CallKind = CallKind::Other;

    fn key(&self) -> &'static str {
        "list"
    }

    fn priority(&self) -> Priority {
        match &*self.0 {
            "keeps" => Priority::Keep,
            "ends" => Priority::End,
            _ => Priority::Ask,
        }
    }

    fn script_call(&self, _: PubSubMode, _: Declared) -> ScriptCall {
        let slowly = self.0.starts_with("slow");
        let script = if slowly { &APPEND_SLOWLY } else { &APPEND };
        ScriptCall::new(script, &["list"]).with(&self.0)
    }

    fn read(&self, reply: &str) -> Result<(ServerTime, ()), ReplyError> {
        if self.0 == "misread" || reply != self.0 {
            return Err(ReplyError::Desynchronised(reply.to_owned()));
        }
        Ok((ServerTime::from_ms(0), ()))
    }
}

#[derive(Debug, Default)]
pub(super) struct Recorder {
    messages: Mutex<Vec<String>>,
    /// Replacements of the connection.
    replacements: AtomicUsize,
    /// How often all was subscribed again.
    reconnects: AtomicUsize,
}

impl Listener for Recorder {
    fn pushed(&self, _: ServerId, channel: &str, message: &str) {
        self.messages.lock().unwrap().push(format!("{channel} {message}"));
    }

    fn replaced(&self, _: ServerId) {
        self.replacements.fetch_add(1, Ordering::SeqCst);
    }

    fn reconnected(&self, _: ServerId) {
        self.reconnects.fetch_add(1, Ordering::SeqCst);
    }
}

impl Recorder {
    fn replacements(&self) -> usize {
        self.replacements.load(Ordering::SeqCst)
    }

    pub(super) fn reconnects(&self) -> usize {
        self.reconnects.load(Ordering::SeqCst)
    }

    fn has(&self, message: &str) -> bool {
        self.messages.lock().unwrap().iter().any(|m| m == message)
    }
}

async fn store(url: &str) -> (Arc<RedisStore>, Arc<Recorder>) {
    store_with(OPTIONS, url).await
}

async fn store_with(options: Options, url: &str) -> (Arc<RedisStore>, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    (connect(options, url, &recorder).await.unwrap(), recorder)
}

async fn connect(options: Options, url: &str, recorder: &Arc<Recorder>) -> Result<Arc<RedisStore>, Error> {
    let deadline = Instant::now() + options.server_timeout;
    let store = open(options, url, recorder)?;
    Store::Server(Arc::clone(&store)).first_answer(deadline).await?;
    Ok(store)
}

fn open(options: Options, url: &str, recorder: &Arc<Recorder>) -> Result<Arc<RedisStore>, Error> {
    let weak: Weak<Recorder> = Arc::downgrade(recorder);
    let listener: Weak<dyn Listener> = weak;
    let scripts = [&script::ALL[..], &[&APPEND, &APPEND_SLOWLY]].concat();
    let connector = Connector::new(url, None, options.attempt_timeout)?;
    let place = (ServerId::default(), PubSubMode::Plain);
    Ok(RedisStore::open(connector, options, &listener, place, &scripts))
}

pub(super) async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + BOUND;
    while !condition() {
        assert!(Instant::now() < deadline, "did not happen: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Polls a call once, which sends it. On a busy machine, the reply may already be there.
fn start(store: &RedisStore, text: &impl ToString) -> Call<()> {
    let mut call = store.call(Append(text.to_string()));
    match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Pending => call,
        Poll::Ready(answer) => Box::pin(std::future::ready(answer)),
    }
}

fn numbers(range: std::ops::Range<usize>) -> String {
    range.map(|n| n.to_string()).collect::<Vec<_>>().join(" ")
}
